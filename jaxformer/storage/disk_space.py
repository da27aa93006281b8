"""Whether a checkpoint fits before it is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import InputError

# Of the arrays' bytes, which the files hold as they are; orbax adds its own notes.
MARGIN = 0.02
NOTES_BYTES = 1 << 20


def checkpoint_bytes(state: Any) -> int:
    """Bytes to have free for a checkpoint of a tree of arrays or `ShapeDtypeStruct`s."""
    arrays = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return int(arrays * (1.0 + MARGIN)) + NOTES_BYTES


def free_bytes(path: Path) -> int | None:
    """Free bytes of the disk that holds, or will hold, `path`; None of an object store."""
    if "://" in os.fspath(path):
        return None
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def require_space(path: Path, needed: int) -> None:
    """Raise `InputError` that says what is needed and what is free, unless `needed` bytes are."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise InputError(
            f"{path}: a checkpoint needs {needed:,} bytes and {free:,} are free; free some space, "
            "or choose a --workdir on another disk"
        )


def check_room(path: Path, needed: int, *, new: int, report: Callable[[str], None]) -> None:
    """Raise `InputError` unless one checkpoint fits, and report if not all of those to come do.

    Args:
      path: where they are saved.
      needed: bytes of each.
      new: how many more there will be, before the first old one goes.
      report: is told how many fit.
    """
    require_space(path, needed)
    free = free_bytes(path)
    if free is not None and free < new * needed:
        report(
            f"{path} has room for {free // needed} more checkpoints of {needed:,} bytes, and up "
            f"to {new} will come before old ones go: free some space, or lower "
            "training.keep_checkpoints"
        )
