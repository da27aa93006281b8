"""Checkpoint averaging (paper 6.1)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.errors import InputError
from jaxformer.storage.parameters import load_params, read_meta, save_params
from jaxformer.storage.steps import list_steps, ranked_steps


def average_checkpoints(
    directory: Path,
    abstract: dict,
    *,
    count: int,
    choose: str,
    best_metric: str,
    check: Callable[[Path], Any] = lambda folder: None,
) -> tuple[str, list[int]]:
    """Average the parameters of the last or the best checkpoints into one beside them.

    `mean_k params_k`, in float64. The plain parameters are averaged, not their moving averages.
    The average keeps the identity of the run that the newest of them holds.

    Args:
      directory: `checkpoints` of a workdir.
      abstract: shapes and dtypes of the parameters, without shardings.
      count: how many.
      choose: `last` or `best`.
      best_metric: by which `best` ranks.
      check: is called with the folder of each, and raises if it does not belong here.

    Returns:
      The name of the new checkpoint, `average_last_5` say, and the steps that went in.

    Raises:
      InputError: fewer than `count` checkpoints are there, or one of them is damaged.
    """
    ranked = (
        list_steps(directory)[::-1] if choose == "last" else ranked_steps(directory, best_metric)
    )
    if count < 1 or len(ranked) < count:
        kind = "checkpoints" if choose == "last" else f"checkpoints evaluated for {best_metric}"
        raise InputError(
            f"--{choose}={count}, but {directory} holds {len(ranked)} {kind}; ask for 1 to "
            f"{len(ranked)}, or train with a larger training.keep_checkpoints"
        )
    steps = sorted(ranked[:count])
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
    unfinished = directory / f".{name}"  # an older average stays until this one is whole
    shutil.rmtree(unfinished, ignore_errors=True)
    save_params(unfinished, mean, texts)
    shutil.rmtree(directory / name, ignore_errors=True)
    unfinished.rename(directory / name)
    return name, steps
