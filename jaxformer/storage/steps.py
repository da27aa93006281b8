"""Which checkpoints a folder holds, how they scored, and what they are called."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.storage.manifest import MANIFEST, describe, verify

HIGHER_IS_BETTER = {"bleu": True, "chrf": True, "accuracy": True, "loss": False}


def warn(message: str) -> None:
    """Print a message to standard error."""
    print(message, file=sys.stderr, flush=True)


def list_steps(directory: Path) -> list[int]:
    """Steps of the finished checkpoints in a directory, ascending: those with a manifest."""
    steps = step_folders(directory)
    return [step for step in steps if (directory / str(step) / MANIFEST).is_file()]


def step_folders(directory: Path) -> list[int]:
    """Steps that have a folder in a directory, finished or not, ascending."""
    if not directory.is_dir():
        return []
    names = [path.name for path in directory.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def step_metrics(directory: Path, step: int) -> dict[str, float]:
    """Metrics of the evaluation at a saved step; empty if there was none.

    Raises:
      InputError: their file is damaged.
    """
    folder = directory / str(step)
    problems = verify(folder, ("metrics",))
    if problems:
        raise InputError(f"the metrics in {folder} are not good: {describe(problems)}")
    path = folder / "metrics" / "metrics"
    return json.loads(path.read_text()) if path.is_file() else {}


def ranked_steps(directory: Path, best_metric: str, report=warn) -> list[int]:
    """Evaluated steps, best first; the later of two equal ones comes first.

    Args:
      directory: of checkpoints.
      best_metric: by which they are ranked.
      report: is told of those whose metrics are damaged; they are left out.
    """
    sign = 1.0 if HIGHER_IS_BETTER[best_metric] else -1.0
    scored = []
    for step in list_steps(directory):
        try:
            metrics = step_metrics(directory, step)
        except InputError as error:
            report(f"left out of the search for the best: {error}")
            continue
        if math.isfinite(metrics.get(best_metric, math.nan)):
            scored.append((sign * metrics[best_metric], step))
    return [step for _, step in sorted(scored, reverse=True)]


def resolve_checkpoint(directory: Path, name: str, best_metric: str) -> Path:
    """The folder of a checkpoint named `best`, `latest`, by its step, or by an average's name.

    Raises:
      InputError: there is no such checkpoint; the message lists those that are there.
    """
    folders = step_folders(directory)
    # Without a single finished one the loader shall say what the unfinished ones lack.
    steps = list_steps(directory) or folders
    named = sorted(path.parent.name for path in directory.glob(f"average_*/{MANIFEST}"))
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
    if name in named or name in map(str, folders):
        return directory / name
    there = ", ".join([*(("best", "latest") if steps else ()), *map(str, steps), *named])
    raise InputError(f"--checkpoint={name} is not in {directory}; there are: {there}")
