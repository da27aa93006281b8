"""Checkpoint averaging (paper 6.1)."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np

from jaxformer.errors import InputError
from jaxformer.storage.checkpoint import list_steps, load_params, ranked_steps, save_params
from jaxformer.storage.workdir import write_atomically


def average_checkpoints(
    directory: Path, abstract: dict, *, count: int, choose: str, best_metric: str
) -> tuple[str, list[int]]:
    """Average the parameters of the last or the best checkpoints into one beside them.

    `mean_k params_k`, in float64. The plain parameters are averaged, not their moving averages.

    Args:
      directory: `checkpoints` of a workdir.
      abstract: shapes and dtypes of the parameters, without shardings.
      count: how many.
      choose: `last` or `best`.
      best_metric: by which `best` ranks.

    Returns:
      The name of the new checkpoint, `average_last_5` say, and the steps that went in.

    Raises:
      InputError: fewer than `count` checkpoints are there.
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
        params = load_params(directory / str(step), abstract, ema=False)
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        total = wide if total is None else jax.tree.map(np.add, total, wide)
    mean = jax.tree.map(lambda x, like: (x / count).astype(like.dtype), total, abstract)
    name = f"average_{choose}_{count}"
    shutil.rmtree(directory / name, ignore_errors=True)
    save_params(directory / name, mean)
    write_atomically(directory / name / "steps.txt", "\n".join(map(str, steps)) + "\n")
    return name, steps
