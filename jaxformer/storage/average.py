"""Checkpoint averaging (paper 6.1)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.errors import InputError
from jaxformer.storage.file_trees import delete_tree, reason
from jaxformer.storage.measurement import Ranking
from jaxformer.storage.parameters import load_params, read_meta, save_params
from jaxformer.storage.steps import evaluated_steps, list_steps, ranked_steps, warn


def average_checkpoints(
    directory: Path,
    abstract: dict,
    *,
    count: int,
    choose: str,
    ranking: Ranking,
    check: Callable[[Path], Any] = lambda folder: None,
) -> tuple[str, list[int]]:
    """Average the parameters of the last or the best checkpoints into one next to them.

    `mean_k params_k`, in float64. The plain parameters are averaged, not their moving averages.
    The average keeps the identity that the newest of them records.

    Args:
      directory: `checkpoints` of a workdir.
      abstract: shapes and dtypes of the parameters, without shardings.
      count: how many.
      choose: `last` or `best`.
      ranking: finds the best.
      check: called with the folder of each; raises if it does not belong here.

    Returns:
      The name of the new checkpoint, such as `average_last_5`, and the averaged steps.

    Raises:
      InputError: fewer than `count` checkpoints are there, one of them is damaged, or the directory
        cannot be read or written.
    """
    steps = choose_steps(directory, count, choose, ranking)
    total = None
    for step in steps:
        check(directory / str(step))
        params = load_params(directory / str(step), abstract, ema=False)
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    mean = jax.tree.map(lambda x, like: (x / count).astype(like.dtype), total, abstract)
    name = f"average_{choose}_{count}"
    meta = read_meta(directory / str(steps[-1]))
    identity = {"identity": meta["identity"]} if "identity" in meta else {}
    texts = {
        "meta/metadata": json.dumps(identity),
        "steps.txt": "".join(f"{step}\n" for step in steps),
    }
    unfinished = directory / f".{name}"  # an older average stays until this one is complete
    try:
        delete_tree(unfinished, warn)
        save_params(unfinished, mean, texts)
        put_in_place(unfinished, directory / name)
    except OSError as error:
        raise InputError(f"{directory / name} cannot be written: {reason(error)}") from error
    return name, steps


def choose_steps(directory: Path, count: int, choose: str, ranking: Ranking) -> list[int]:
    """The steps to average, ascending.

    Args:
      directory, count, choose, ranking: see `average_checkpoints`.

    Raises:
      InputError: there are fewer than `count`, or the directory cannot be read.
    """
    if choose == "last":
        ranked, kind = list_steps(directory)[::-1], "checkpoints"
    else:
        ranked = ranked_steps(directory, ranking)
        kind = f"checkpoints evaluated for {ranking.best_metric}"
    if 1 <= count <= len(ranked):
        return sorted(ranked[:count])
    others = 0
    if choose == "best":
        evaluated = evaluated_steps(directory, report=lambda line: None)
        others = sum(ranking.best_metric in one.metrics for one in evaluated) - len(ranked)
    raise InputError(
        f"--{choose}={count}, but {directory} holds {len(ranked)} {kind}"
        + (f" like the newest one, and {others} in another way" if others > 0 else "")
        + f"; ask for 1 to {len(ranked)}, or train with a larger training.keep_checkpoints"
    )


def put_in_place(unfinished: Path, final: Path) -> None:
    """Rename a complete average into place, then delete what it replaces, never a link's target."""
    older = final.with_name(f".{final.name}.older")
    try:
        delete_tree(older, warn)
        if os.path.lexists(final):
            final.rename(older)
        unfinished.rename(final)
    except OSError:
        if not os.path.lexists(final) and os.path.lexists(older):
            older.rename(final)
        delete_tree(unfinished, warn)
        raise
    try:
        delete_tree(older, warn)
    except OSError as error:
        warn(f"the previous average, {older}, could not be deleted: {reason(error)}")
