"""The folder of tokenised corpora: where it is, and how entries come and go in it."""

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

LOCK = "lock"  # a file in each folder that is being written, locked by the process that does
TEMPORARY = re.compile(r"[0-9a-f]{32}\.\d+\.[0-9a-f]{8}\.tmp")


def cache_directory(config: DataConfig) -> Path:
    """Where tokenised corpora live: data.cache_dir, JAXFORMER_CACHE or ~/.cache/jaxformer."""
    return expand_user(config.cache_dir, "data.cache_dir") if config.cache_dir else cache_folder()


def cache_error(path: Path, error: OSError) -> InputError:
    return InputError(
        f"data.cache_dir: cannot write {path}: {error.strerror}; set data.cache_dir or "
        "JAXFORMER_CACHE to a folder with room that may be written"
    )


class ArrayWriter:
    """A `.npy` file of one dimension that grows by `append`; its header is right once closed.

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
        """NumPy leaves room in a header for any length, so that it can be written over."""
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
    """Refuse a text that is no longer the one that the key of its entry names.

    Args:
      source: of the text, which has been read.
      split: of the text.
      fingerprint: of the source, taken before it was read.

    Raises:
      InputError: it has another fingerprint now.
    """
    # Of the class: whoever remembers fingerprints of large texts does so on the object.
    if type(source).fingerprint(source, split) != fingerprint:
        raise InputError(
            f"data.{split}: {source.describe(split)} changed while it was read; start again when "
            "nothing writes to it any more"
        )


def write_manifest(directory: Path, identity: dict, report: dict, names: tuple[str, ...]) -> None:
    """Write `manifest.json`: what the entry is of, its report and a checksum of each array."""
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
    """Map the arrays of an entry, and its report; `ValueError`, ... or `OSError` if damaged."""
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

    The lock goes with the process, however that ends. The folder is deleted on leaving, unless
    it was published.
    """
    while True:
        building = temporary_sibling(entry)
        try:
            building.mkdir(parents=True)
            lock = (building / LOCK).open("wb")
        except FileNotFoundError:
            continue  # taken for stale before it was locked
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
    """Whether this process has the lock now; on a file system without locks, True."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def remove_stale(cache: Path) -> None:
    """Delete what killed processes left half written: temporary folders that nobody locks."""
    try:
        names = os.listdir(cache)
    except OSError:
        return  # there is no such folder yet, or nothing in it that this process may delete
    for path in (cache / name for name in names if TEMPORARY.fullmatch(name)):
        # The lock is made where there is none, so that a process that has just made the folder
        # and not yet locked it sees that it has lost it.
        with contextlib.suppress(OSError), (path / LOCK).open("ab") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)


def publish(building: Path, entry: Path) -> None:
    """Move a finished entry to its place, unless another process was first."""
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
    """Delete a damaged entry; renamed first, so that no process sees it half deleted."""
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
