"""Whether a checkpoint fits before it is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import InputError
from jaxformer.storage.file_trees import is_local, tree_bytes
from jaxformer.storage.retention import refused_folders

# Of the arrays' bytes, which the files hold as they are; orbax adds its own notes.
MARGIN = 0.02
NOTES_BYTES = 1 << 20


def checkpoint_bytes(state: Any) -> int:
    """Bytes to have free for a checkpoint of a tree of arrays or `ShapeDtypeStruct`s."""
    arrays = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return int(arrays * (1.0 + MARGIN)) + NOTES_BYTES


def free_bytes(path: Path) -> int | None:
    """Free bytes of the disk that holds, or will hold, `path`.

    Returns:
      None of an object store, and of a disk that does not tell.
    """
    if not is_local(path):
        return None
    place = Path(os.path.abspath(path))
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    try:
        return shutil.disk_usage(place).free
    except OSError:
        return None


def require_space(path: Path, needed: int) -> None:
    """Ask for room before anything is written.

    Args:
      path: directory of the checkpoints.
      needed: bytes.

    Raises:
      InputError: less is free; the message says what refused checkpoints hold.
    """
    free = free_bytes(path)
    if free is not None and free < needed:
        raise InputError(
            f"{path}: a checkpoint needs {needed:,} bytes and {free:,} are free; free some space, "
            f"or choose a --workdir on another disk{describe_refused(path)}"
        )


def describe_refused(path: Path) -> str:
    """What refused checkpoints hold, for the end of a message; empty if they hold nothing."""
    sizes = {folder.name: tree_bytes(folder) for folder in refused_folders(path)}
    names = [name for name, size in sizes.items() if size]
    if not names:
        return ""
    return (
        f". Damaged checkpoints, which only you can delete, hold {sum(sizes.values()):,} bytes: "
        f"{', '.join(names)} in {path}"
    )


def check_room(path: Path, needed: int, *, new: int, report: Callable[[str], None]) -> None:
    """Whether one checkpoint fits, and all of those to come.

    Args:
      path: where they are saved.
      needed: bytes of each.
      new: how many more there will be, before the first old one goes.
      report: is told how many fit.

    Raises:
      InputError: not even one fits.
    """
    require_space(path, needed)
    free = free_bytes(path)
    if free is not None and free < new * needed:
        report(
            f"{path} has room for {free // needed} more checkpoints of {needed:,} bytes, and up "
            f"to {new} will come before old ones go: free some space, or lower "
            f"training.keep_checkpoints{describe_refused(path)}"
        )
