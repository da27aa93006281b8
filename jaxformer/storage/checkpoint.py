"""Checkpoints on disk, through orbax: what training saves and what everything else reads."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.errors import InputError
from jaxformer.parallel.sharding import path_name

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "accuracy": True, "loss": False}


def import_orbax():
    """`orbax.checkpoint`, without its warnings about files that we never write."""
    import orbax.checkpoint

    logging.getLogger("absl").setLevel(logging.ERROR)
    return orbax.checkpoint


class Checkpointer:
    """Saves training states asynchronously; keeps the newest ones and the best one.

    A checkpoint holds the items `params`, `optimizer` (with the step), `ema` where there is a
    moving average, and `meta`, a JSON object.

    Raises:
      InputError: the directory holds a part of a checkpoint, which orbax would take for whole.
    """

    def __init__(self, directory: Path, *, keep: int, best_metric: str):
        ocp = import_orbax()
        from orbax.checkpoint import checkpoint_managers as policies

        self._ocp = ocp
        _check_complete(directory)
        higher = HIGHER_IS_BETTER[best_metric]

        def metric(metrics: dict[str, float]) -> float:
            return metrics[best_metric] if higher else -metrics[best_metric]

        self._manager = ocp.CheckpointManager(
            directory.absolute(),
            options=ocp.CheckpointManagerOptions(
                best_fn=metric,
                preservation_policy=policies.AnyPreservationPolicy(
                    [
                        policies.LatestN(n=keep),
                        policies.BestN(
                            get_metric_fn=metric, n=1, keep_checkpoints_without_metrics=False
                        ),
                    ]
                ),
                enable_async_checkpointing=True,
            ),
        )

    @property
    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def save(
        self, step: int, state, meta: dict[str, Any], metrics: dict[str, float] | None
    ) -> None:
        """Start to save; returns as soon as the arrays are copied off the devices.

        Args:
          step: updates done.
          state: the `TrainState`.
          meta: JSON values, restored as they are.
          metrics: of the evaluation at this step, None if there was none: such a checkpoint is
            never the best.
        """
        args = self._ocp.args
        items = {
            "params": args.StandardSave(state.params),
            "optimizer": args.StandardSave({"step": state.step, "opt_state": state.opt_state}),
            "meta": args.JsonSave(meta),
        }
        if state.ema_params is not None:
            items["ema"] = args.StandardSave(state.ema_params)
        if not self._manager.save(step, args=args.Composite(**items), metrics=metrics, force=True):
            raise RuntimeError(f"orbax did not save step {step}")

    def restore(self, step: int, abstract) -> tuple[Any, dict[str, Any]]:
        """The state and meta of a step, each array placed as `abstract` says.

        Raises:
          InputError: shapes differ from the model's.
        """
        args = self._ocp.args
        items = {
            "params": args.StandardRestore(abstract.params),
            "optimizer": args.StandardRestore(
                {"step": abstract.step, "opt_state": abstract.opt_state}
            ),
            "meta": args.JsonRestore(),
        }
        if abstract.ema_params is not None:
            items["ema"] = args.StandardRestore(abstract.ema_params)
        found = self._manager.restore(step, args=args.Composite(**items))
        state = abstract._replace(
            step=found["optimizer"]["step"],
            params=found["params"],
            opt_state=found["optimizer"]["opt_state"],
            ema_params=found["ema"] if abstract.ema_params is not None else None,
        )
        return state, found["meta"]

    def wait(self) -> None:
        """Return when everything is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def list_steps(directory: Path) -> list[int]:
    """Steps of the complete checkpoints in a directory, ascending."""
    if not directory.is_dir():
        return []
    return sorted(
        int(path.name)
        for path in directory.iterdir()
        if path.name.isdecimal() and (path / "_CHECKPOINT_METADATA").is_file()
    )


def _check_complete(directory: Path) -> None:
    names = [p.name for p in directory.iterdir()] if directory.is_dir() else []
    complete = map(str, list_steps(directory))
    parts = sorted({name for name in names if name.isdecimal()}.difference(complete))
    if parts:
        raise InputError(
            f"{directory / parts[0]} is not a complete checkpoint: it has no _CHECKPOINT_METADATA; "
            "copy it again or delete it, and the run goes on from the newest complete one"
        )


def step_metrics(directory: Path, step: int) -> dict[str, float]:
    """Metrics of the evaluation at a saved step; empty if there was none."""
    import json

    path = directory / str(step) / "metrics" / "metrics"
    return json.loads(path.read_text()) if path.is_file() else {}


def ranked_steps(directory: Path, best_metric: str) -> list[int]:
    """Evaluated steps, best first; the later of two equal ones comes first."""
    sign = 1.0 if HIGHER_IS_BETTER[best_metric] else -1.0
    scored = [
        (sign * metrics[best_metric], step)
        for step in list_steps(directory)
        if best_metric in (metrics := step_metrics(directory, step))
    ]
    return [step for _, step in sorted(scored, reverse=True)]


def resolve_checkpoint(directory: Path, name: str, best_metric: str) -> Path:
    """The folder of a checkpoint named `best`, `latest`, by its step, or by an average's name.

    Raises:
      InputError: there is no such checkpoint; the message lists those that are there.
    """
    steps = list_steps(directory)
    named = sorted(p.parent.name for p in directory.glob("average_*/params"))
    if not steps and not named:
        raise InputError(
            f"{directory} holds no checkpoint; train first: python train.py --workdir="
            f"{directory.parent}"
        )
    if name == "best" and steps:
        ranked = ranked_steps(directory, best_metric)
        return directory / str(ranked[0] if ranked else steps[-1])
    if name == "latest" and steps:
        return directory / str(steps[-1])
    numbers = [str(step) for step in steps]
    if name in named or name in numbers:
        return directory / name
    there = ", ".join([*(("best", "latest") if steps else ()), *numbers, *named])
    raise InputError(f"--checkpoint={name} is not in {directory}; there are: {there}")


def load_params(path: Path, abstract: dict, *, ema: bool = True) -> dict:
    """Parameters of one checkpoint folder: the moving average where there is one.

    Args:
      path: from `resolve_checkpoint`.
      abstract: tree of `ShapeDtypeStruct`; with shardings the arrays are placed by them, without
        they come back as NumPy arrays.
      ema: False: never the moving average.

    Raises:
      InputError: the checkpoint holds other parameters; all differences are listed.
    """
    ocp = import_orbax()
    path = path.absolute()  # orbax finds nothing under a relative path
    item = path / "ema" if ema and (path / "ema").is_dir() else path / "params"
    with (
        ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # orbax warns that it reads from another topology
        _check_tree(checkpointer.metadata(item).item_metadata, abstract, item)
        target = jax.tree.map(
            lambda leaf: (
                leaf
                if getattr(leaf, "sharding", None) is not None
                else np.empty(leaf.shape, leaf.dtype)
            ),
            abstract,
        )
        return checkpointer.restore(item, args=ocp.args.StandardRestore(target))


def save_params(path: Path, params: dict) -> None:
    """Write parameters alone as a checkpoint folder, whole or not at all."""
    ocp = import_orbax()
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        checkpointer.save((path / "params").absolute(), args=ocp.args.StandardSave(params))


def _check_tree(stored, abstract, item: Path) -> None:
    def shapes(tree) -> dict[str, tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {path_name(path): tuple(leaf.shape) for path, leaf in leaves}

    have, want = shapes(stored), shapes(abstract)
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
