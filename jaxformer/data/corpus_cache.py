"""The cache of tokenised corpora: where it is, and how entries are added and removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.config import DataConfig
from jaxformer.errors import InputError
from jaxformer.files.user_paths import cache_folder, expand_user

LOCK = "lock"  # a file in each folder being written, locked by the writing process
TEMPORARY = re.compile(r"[0-9a-f]{32}\.\d+\.[0-9a-f]{8}\.tmp")


def cache_directory(config: DataConfig) -> Path:
    """Where tokenised corpora live: data.cache_dir, JAXFORMER_CACHE or ~/.cache/jaxformer."""
    return expand_user(config.cache_dir, "data.cache_dir") if config.cache_dir else cache_folder()


def cache_error(path: Path, error: OSError) -> InputError:
    return InputError(
        f"data.cache_dir: cannot write {path}: {error.strerror}; set data.cache_dir or "
        "JAXFORMER_CACHE to a writable folder with free space"
    )


class ArrayWriter:
    """A one-dimensional `.npy` file that grows by `append`; closing it completes its header.

    Raises:
      InputError: the file cannot be written, or the disk is full.
    """

    def __init__(self, path: Path, dtype: Any):
        self._path, self._dtype, self._count = path, np.dtype(dtype), 0
        with self._checked():
            self._file = path.open("wb")
            self._write_header()

    @contextlib.contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cache_error(self._path, error) from error

    def _write_header(self) -> None:
        """NumPy pads headers for any length, so this one can be overwritten in place."""
        self._file.seek(0)
        header = {"descr": self._dtype.str, "fortran_order": False, "shape": (self._count,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: np.ndarray) -> None:
        with self._checked():
            self._file.write(values.astype(self._dtype, copy=False).tobytes())
        self._count += len(values)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._checked(), self._file:
            self._write_header()


def checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def check_unchanged(source: Any, split: str, fingerprint: str) -> None:
    """Refuse a text that changed while it was read.

    Args:
      source: where the text was read.
      split: train, validation or test.
      fingerprint: of the text, taken before it was read.

    Raises:
      InputError: the fingerprint is different now.
    """
    # Called on the class, because objects may cache the fingerprints of large texts.
    if type(source).fingerprint(source, split) != fingerprint:
        raise InputError(
            f"data.{split}: {source.describe(split)} changed while it was read; start again once "
            "nothing writes to it"
        )


def write_manifest(directory: Path, identity: dict, report: dict, names: tuple[str, ...]) -> None:
    """Write `manifest.json`, with a checksum of each array.

    Args:
      directory: the entry.
      identity: what was tokenised, and how.
      report: how many pairs were read, kept and dropped.
      names: of the arrays.

    Raises:
      InputError: the file cannot be written.
    """
    manifest = {
        "identity": identity,
        "report": report,
        "crc32": {name: checksum(directory / f"{name}.npy") for name in names},
    }
    path = directory / "manifest.json"
    try:
        path.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    except OSError as error:
        raise cache_error(path, error) from error


def load_entry(
    entry: Path, identity: dict, names: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], dict]:
    """Map the arrays of an entry, after checking their checksums.

    Args:
      entry: the entry's folder.
      identity: what must have been tokenised, and how.
      names: of the arrays.

    Returns:
      The arrays by name, memory-mapped, and the entry's report.

    Raises:
      OSError: a file is missing or cannot be read.
      ValueError, KeyError, TypeError: the entry is damaged or belongs to another corpus.
    """
    manifest = json.loads((entry / "manifest.json").read_text(encoding="utf-8"))
    if manifest["identity"] != identity:
        raise ValueError("manifest.json belongs to another corpus")
    arrays = {}
    for name in names:
        path = entry / f"{name}.npy"
        if checksum(path) != manifest["crc32"][name]:
            raise ValueError(f"checksum of {path.name} differs")
        arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
    return arrays, manifest["report"]


@contextlib.contextmanager
def building_folder(entry: Path) -> Iterator[Path]:
    """A new folder to write an entry in, locked so that no other process takes it for stale.

    The lock ends with the process, however it ends. The folder is deleted on exit unless it was
    published.
    """
    while True:
        building = temporary_sibling(entry)
        try:
            building.mkdir(parents=True)
            lock = (building / LOCK).open("wb")
        except FileNotFoundError:
            continue  # deleted as stale before it was locked
        except OSError as error:
            raise cache_error(building, error) from error
        if try_lock(lock.fileno()) and os.fstat(lock.fileno()).st_nlink:
            break
        lock.close()
    with lock:
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)


def try_lock(descriptor: int) -> bool:
    """Take a lock if it is free; True if taken, or on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def remove_stale(cache: Path) -> None:
    """Delete the half-written folders of killed processes: temporary folders without a lock."""
    try:
        names = os.listdir(cache)
    except OSError:
        return  # the folder does not exist yet, or is not readable
    for path in (cache / name for name in names if TEMPORARY.fullmatch(name)):
        # The lock file is created if missing: a process that made the folder but has not locked
        # it yet then notices that it lost it.
        with contextlib.suppress(OSError), (path / LOCK).open("ab") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


def publish(building: Path, entry: Path) -> None:
    """Move a finished entry into place, unless another process was first."""
    try:
        os.rename(building, entry)
    except OSError:
        if not entry.is_dir():
            raise
    else:
        (entry / LOCK).unlink()


def temporary_sibling(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def move_away(entry: Path) -> None:
    """Delete a damaged entry; it is renamed first, so that no process sees it half deleted."""
    doomed = temporary_sibling(entry)
    try:
        os.rename(entry, doomed)
    except FileNotFoundError:
        return  # another process was first
    except OSError as error:
        raise cache_error(entry, error) from error
    if doomed.is_dir():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink()
