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

# Share of the arrays' bytes, which the files store uncompressed, plus orbax's metadata.
MARGIN = 0.02
NOTES_BYTES = 1 << 20


def checkpoint_bytes(state: Any) -> int:
    """Free bytes needed for a checkpoint of a tree of arrays or `ShapeDtypeStruct`s."""
    arrays = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    return int(arrays * (1.0 + MARGIN)) + NOTES_BYTES


def free_bytes(path: Path) -> int | None:
    """Free bytes of the disk that holds, or will hold, `path`.

    Returns:
      The bytes; None for an object store, or if the disk does not report them.
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
    """Check that there is enough free space, before anything is written.

    Args:
      path: directory of the checkpoints.
      needed: bytes.

    Raises:
      InputError: less is free; the message says how much refused checkpoints hold.
    """
    free = free_bytes(path)
    if free is not None and free < needed:
        raise InputError(
            f"{path}: a checkpoint needs {needed:,} bytes, but only {free:,} are free; free some "
            f"space, or choose a --workdir on another disk{describe_refused(path)}"
        )


def describe_refused(path: Path) -> str:
    """How much refused checkpoints hold, to end a message; empty if nothing."""
    sizes = {folder.name: tree_bytes(folder) for folder in refused_folders(path)}
    names = [name for name, size in sizes.items() if size]
    if not names:
        return ""
    return (
        f". Damaged checkpoints, which only you may delete, hold {sum(sizes.values()):,} bytes: "
        f"{', '.join(names)} in {path}"
    )


def check_room(path: Path, needed: int, *, new: int, report: Callable[[str], None]) -> None:
    """Check that one checkpoint fits, and report if all planned ones do not.

    Args:
      path: where they are saved.
      needed: bytes of each.
      new: number of new checkpoints before the first old one is deleted.
      report: called with a message if fewer than `new` fit.

    Raises:
      InputError: not even one fits.
    """
    require_space(path, needed)
    free = free_bytes(path)
    if free is not None and free < new * needed:
        report(
            f"{path} has room for {free // needed} more checkpoints of {needed:,} bytes, but up to "
            f"{new} are saved before old ones are deleted: free some space, or lower "
            f"training.keep_checkpoints{describe_refused(path)}"
        )
