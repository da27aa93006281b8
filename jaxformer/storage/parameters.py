"""The parameters of one checkpoint, without the rest of the training state."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.errors import InputError
from jaxformer.parallel.sharding import path_name
from jaxformer.storage.agreement import ask_first_process
from jaxformer.storage.disk_space import checkpoint_bytes, require_space
from jaxformer.storage.file_trees import delete_tree, reason
from jaxformer.storage.manifest import has_part, read_json, require_verified, write_manifest
from jaxformer.storage.steps import warn


def import_orbax():
    """`orbax.checkpoint`, without its warnings about files that jaxformer never writes."""
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.ERROR)
    return orbax.checkpoint


def array_writer():
    """Orbax's handler for arrays, uncompressed: half the work of a save, 8 % more disk."""
    return import_orbax().PyTreeCheckpointHandler(use_compression=False)


def load_params(path: Path, abstract: dict, *, ema: bool = True) -> dict:
    """Parameters of one checkpoint folder, verified: the moving average where there is one.

    Args:
      path: from `resolve_checkpoint`.
      abstract: tree of `ShapeDtypeStruct`; with shardings the arrays are placed by them, without
        they come back as NumPy arrays.
      ema: False: never the moving average.

    Raises:
      InputError: files of these parameters are damaged, or they belong to another model; the
        message lists all differences.
    """
    item = _verified_item(path, ema=ema)
    check_tree(item, abstract)
    return _restore(item, abstract)


def load_matching(path: Path, abstract: dict, names: Collection[str], others: dict) -> dict:
    """The named parameters from a checkpoint folder, all others from `others`.

    Args:
      path: from `resolve_checkpoint`.
      abstract: tree of `ShapeDtypeStruct` with shardings, of the whole model.
      names: paths of the parameters to load, `decoder/layer_0/...`; stored in the same shapes.
      others: arrays in the structure of `abstract`.

    Raises:
      InputError: files of these parameters are damaged.
    """
    ocp = import_orbax()
    wanted: dict = {}
    for path_of_leaf, leaf in jax.tree_util.tree_leaves_with_path(abstract):
        *parents, last = (key.key for key in path_of_leaf)
        if path_name(path_of_leaf) in names:
            branch = wanted
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = leaf
    how = ocp.checkpoint_utils.construct_restore_args(wanted)
    args = ocp.args.PyTreeRestore(wanted, restore_args=how, partial_restore=True)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        found = _by_path(checkpointer.restore(_verified_item(path), args=args))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: found.get(path_name(path), leaf), others
    )


def stored_shapes(path: Path, *, ema: bool = True) -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters in a checkpoint folder, by their paths."""
    item = _verified_item(path, ema=ema)
    return _shapes(_stored_tree(item))


def _verified_item(path: Path, *, ema: bool = True) -> Path:
    """The folder of the parameters in a checkpoint: the moving average's, if there is one."""
    ask_first_process(lambda: require_verified(path, ("params", "ema")))
    path = path.absolute()  # orbax finds nothing under a relative path
    return path / "ema" if ema and has_part(path, "ema") else path / "params"


def _restore(item: Path, abstract: dict) -> dict:
    ocp = import_orbax()
    target = jax.tree.map(
        lambda leaf: (
            leaf
            if getattr(leaf, "sharding", None) is not None
            else np.empty(leaf.shape, leaf.dtype)
        ),
        abstract,
    )
    with (
        ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # orbax warns that it reads from another topology
        return checkpointer.restore(item, args=ocp.args.StandardRestore(target))


def save_params(path: Path, params: dict, texts: Mapping[str, str] | None = None) -> None:
    """Write only parameters as a checkpoint folder, completely or not at all.

    Args:
      path: the folder, which must not exist.
      params: arrays.
      texts: other files of the checkpoint, text by name; `meta/metadata` is what `read_meta` reads.

    Raises:
      InputError: the disk has no room, or the folder is there already or cannot be written.
    """
    path = path.absolute()
    if os.path.lexists(path):
        raise InputError(f"{path} is already there; delete it, or choose another name")
    require_space(path.parent, checkpoint_bytes(params))
    try:
        _write_params(path, params, texts or {})
    except BaseException as error:
        with contextlib.suppress(OSError):
            delete_tree(path, warn)
        if not isinstance(error, Exception):  # Ctrl-C
            raise
        # Orbax may raise anything.
        kind = type(error).__name__
        raise InputError(f"{path} cannot be written: {kind}: {reason(error)}") from error


def _write_params(path: Path, params: dict, texts: Mapping[str, str]) -> None:
    ocp = import_orbax()
    with ocp.Checkpointer(array_writer()) as checkpointer:
        checkpointer.save(path / "params", args=ocp.args.PyTreeSave(params))
    for name, text in texts.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text, "utf-8")
    write_manifest(path)


def read_meta(path: Path) -> dict[str, Any]:
    """The `meta` of one checkpoint folder, verified; empty if it has none.

    Raises:
      InputError: its file is damaged.
    """
    return read_json(path, "meta/metadata")


def check_tree(item: Path, abstract: dict) -> None:
    """Raise `InputError` that lists where stored parameters differ from `abstract` in shape."""
    have, want = _shapes(_stored_tree(item)), _shapes(abstract)
    wrong = [f"{name}: missing" for name in sorted(want.keys() - have.keys())]
    wrong += [f"{name}: not in the model" for name in sorted(have.keys() - want.keys())]
    wrong += [
        f"{name}: {have[name]} instead of {want[name]}"
        for name in sorted(have.keys() & want.keys())
        if have[name] != want[name]
    ]
    if wrong:
        shown = "\n  ".join(
            wrong[:20] + ([f"and {len(wrong) - 20} more"] if len(wrong) > 20 else [])
        )
        raise InputError(f"{item} does not hold this model's parameters:\n  {shown}")


def _stored_tree(item: Path):
    ocp = import_orbax()
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        return checkpointer.metadata(item).item_metadata


def _by_path(tree) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in _by_path(tree).items()}
