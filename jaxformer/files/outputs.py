"""Output for the user: files that appear only when complete, devices, pipes, standard output."""

from __future__ import annotations

import errno
import io
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from jaxformer.errors import InputError
from jaxformer.files.descriptors import descriptor_of, is_regular
from jaxformer.files.user_paths import may_write


def check_output(name: str, example: str = "translations.txt", flag: str = "--output") -> Path:
    """Check that an output file can be written, before any work is done.

    Args:
      name: of the file.
      example: a file name to suggest if `name` is a folder.
      flag: that named it, for messages.

    Returns:
      `name` as a `Path`.

    Raises:
      InputError: it is a folder, its folder does not exist, or either is not writable.
    """
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{flag}={name} is a folder; name a file, such as {path / example}")
    if descriptor_of(path) is not None:
        return path
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        shown = folder if path.is_symlink() else path.parent
        raise InputError(f"{flag}={name}: no such folder {shown}; create it first")
    place = path if path.exists() else folder  # a write-protected file is not replaced
    if not may_write(place):
        raise InputError(
            f"{flag}={name}: {place} is not writable; choose another file, or make it writable"
        )
    return path


def _is_replaced(path: Path) -> bool:
    """Whether the file can be written next to its place first, and then moved there."""
    folder = Path(os.path.realpath(path)).parent
    return is_regular(path) and may_write(folder)


@contextmanager
def open_output(
    name: str | os.PathLike | None, *, flag: str = "--output", binary: bool = False
) -> Iterator[IO]:
    """Standard output, or a file that appears under its name only when it is complete.

    Devices, pipes and descriptors (`/dev/stdout`, `>(command)`) are written directly, and so is a
    file in a folder that is not writable. A link stays a link. An existing file keeps its
    permissions. If writing fails, nothing is left behind; if anything else ends the block, what was
    written stays next to the file, and standard error says where.

    Args:
      name: of the file; None: standard output.
      flag: that named it, for messages.
      binary: bytes instead of UTF-8 text.

    Yields:
      The open file.

    Raises:
      InputError: it cannot be written.
      BrokenPipeError: the reader of a pipe went away.
    """
    if name is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    path = check_output(os.fspath(name), flag=flag)
    if path.exists() and not _is_replaced(path) or descriptor_of(path) is not None:
        with _wrapped(_open_in_place(path, flag), binary) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    # A unique name: no other file is overwritten, and two commands with one --output do not mix.
    partial = target.with_name(f".{secrets.token_hex(4)}.partial")
    raw = _create(partial, target, flag)
    try:
        with _wrapped(raw, binary) as file:
            yield file
    except BaseException:
        with suppress(OSError):
            _leave_behind(partial, target, f"{flag}={name}", failed=raw.failure is not None)
        raise
    try:
        _put_in_place(partial, target)
    except OSError as error:
        raise _refused(flag, name, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _put_in_place(partial: Path, target: Path) -> None:
    try:
        os.replace(partial, target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        shutil.copyfile(partial, target)  # a single file mounted into a container


def _leave_behind(partial: Path, target: Path, shown: str, *, failed: bool) -> None:
    """Delete what a full disk truncated; keep what an interrupted command wrote, and say so."""
    if failed or not partial.stat().st_size:
        partial.unlink()
        return
    kept = target.with_name(f"{target.name}{partial.name}")
    partial.rename(kept)
    print(f"{shown} is incomplete; what was written is in {kept}", file=sys.stderr)


class _RawOutput(io.FileIO):
    """An open file whose failed writes raise an `InputError` that names the flag.

    After the first failure it discards everything, so that closing raises nothing more.
    """

    failure: OSError | None = None

    def __init__(self, descriptor: int, flag: str, shown: str):
        super().__init__(descriptor, "w")
        self._flag, self._shown = flag, shown

    def write(self, data) -> int | None:
        if self.failure is not None:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            if isinstance(error, BrokenPipeError):
                raise
            raise _refused(self._flag, self._shown, error) from error


def _refused(flag: str, name: str | os.PathLike, error: OSError) -> InputError:
    return InputError(f"{flag}={os.fspath(name)}: cannot be written: {error.strerror}")


def _wrapped(raw: _RawOutput, binary: bool) -> IO:
    buffered = io.BufferedWriter(raw)
    return buffered if binary else io.TextIOWrapper(buffered, encoding="utf-8", newline="\n")


def _open_in_place(path: Path, flag: str) -> _RawOutput:
    descriptor = descriptor_of(path)
    try:
        if descriptor is None:
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        else:
            for stream in (sys.stdout, sys.stderr):  # keep the order of what was printed
                if stream is not None:
                    stream.flush()
            opened = os.dup(descriptor)
    except OSError as error:
        raise _refused(flag, path, error) from error
    return _RawOutput(opened, flag, os.fspath(path))


def _create(partial: Path, target: Path, flag: str) -> _RawOutput:
    try:
        opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if target.exists():
            with suppress(OSError):  # a file system without permissions
                os.chmod(opened, target.stat().st_mode & 0o777)
    except OSError as error:
        raise _refused(flag, target, error) from error
    return _RawOutput(opened, flag, os.fspath(target))
