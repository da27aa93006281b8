"""The folder of tokenised corpora: where it is, and how entries come and go in it."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from jaxformer.config import DataConfig, cache_folder
from jaxformer.errors import InputError


def cache_directory(config: DataConfig) -> Path:
    """Where tokenised corpora live: data.cache_dir, JAXFORMER_CACHE or ~/.cache/jaxformer."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else cache_folder()


def append(file: BinaryIO, values: np.ndarray) -> None:
    """Write an array's bytes at the end of `file`; a full disk is an `InputError`."""
    try:
        file.write(values.tobytes())
    except OSError as error:
        raise cache_error(Path(file.name), error) from error


def cache_error(path: Path, error: OSError) -> InputError:
    return InputError(
        f"data.cache_dir: cannot write {path}: {error.strerror}; set data.cache_dir or "
        "JAXFORMER_CACHE to a folder with room that may be written"
    )


def checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def publish(building: Path, entry: Path) -> None:
    """Move a finished entry to its place, unless another process was first."""
    try:
        os.rename(building, entry)
    except OSError:
        if not entry.is_dir():
            raise


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
