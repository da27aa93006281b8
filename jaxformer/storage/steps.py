"""Which checkpoints a folder holds, how they scored, and what they are called."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.errors import InputError
from jaxformer.storage.file_trees import is_link, reason
from jaxformer.storage.manifest import MANIFEST, read_json
from jaxformer.storage.measurement import Ranking, measured_alike, measurement


def warn(message: str) -> None:
    """Print a message to standard error."""
    print(message, file=sys.stderr, flush=True)


def list_steps(directory: Path) -> list[int]:
    """Steps of the finished checkpoints in a directory, ascending: those with a manifest.

    Raises:
      InputError: the directory cannot be listed.
    """
    steps = step_folders(directory)
    return [step for step in steps if is_file(directory / str(step) / MANIFEST)]


def step_folders(directory: Path) -> list[int]:
    """Steps that have a folder in a directory, finished or not, ascending.

    A broken link counts too: its checkpoint is lost, and callers report that.

    Raises:
      InputError: the directory cannot be listed.
    """
    names = folder_names(directory)
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def folder_names(directory: Path) -> list[str]:
    """Names of the folders and links in a directory, broken ones too; empty if it is missing.

    Raises:
      InputError: the directory cannot be listed.
    """
    try:
        if not directory.is_dir():
            return []
        found = [path.name for path in directory.iterdir() if is_link(path) or path.is_dir()]
    except OSError as error:
        raise InputError(
            f"the checkpoints in {directory} cannot be listed: {reason(error)}; make it readable "
            "for this user"
        ) from error
    return sorted(found)


def average_names(directory: Path) -> list[str]:
    """Names of the folders of averages in a directory, finished or not.

    Raises:
      InputError: the directory cannot be listed.
    """
    return [name for name in folder_names(directory) if name.startswith("average_")]


def is_file(path: Any) -> bool:
    """Whether a file exists; False where permissions hide it."""
    try:
        return path.is_file()
    except OSError:
        return False


def step_metrics(directory: Path, step: int) -> dict[str, float]:
    """Metrics of the evaluation at a saved step; empty if there was none.

    Raises:
      InputError: their file is damaged.
    """
    return read_json(directory / str(step), "metrics/metrics")


class Evaluated(NamedTuple):
    """A finished checkpoint with the figures of its evaluation.

    Attributes:
      step: step of the checkpoint.
      metrics: figures by name.
      identity: of the run, as by `Identity.to_dict`; None: an older version wrote none.
    """

    step: int
    metrics: dict[str, float]
    identity: dict[str, Any] | None

    def sought(self, metric: str) -> str:
        """The metric that chose the best when the run saved this; `metric` if unknown."""
        config = (self.identity or {}).get("config", {})
        return config.get("training", {}).get("best_metric", metric)


def evaluated_steps(directory: Path, report: Callable[[str], None] = warn) -> list[Evaluated]:
    """The finished checkpoints that were evaluated, ascending.

    Args:
      directory: holds the checkpoints.
      report: called with a line on each whose metrics or identity are damaged; it is left out.

    Raises:
      InputError: the directory cannot be listed.
    """
    found = []
    for step in list_steps(directory):
        try:
            metrics = step_metrics(directory, step)
            meta = read_json(directory / str(step), "meta/metadata") if metrics else {}
        except InputError as error:
            report(f"left out of the search for the best: {error}")
            continue
        if metrics:
            found.append(Evaluated(step, metrics, meta.get("identity")))
    return found


def ranked_steps(
    directory: Path, ranking: Ranking, report: Callable[[str], None] = warn
) -> list[int]:
    """Evaluated steps, best first; the later of two equal ones comes first.

    Only those measured like the newest one: other figures are not comparable.

    Args:
      directory: holds the checkpoints.
      ranking: names the metric.
      report: called with a line on each whose metrics are damaged; it is left out.

    Raises:
      InputError: the directory cannot be listed.
    """
    return _rank_like_newest(evaluated_steps(directory, report), ranking)


def best_steps(directory: Path, ranking: Ranking, report: Callable[[str], None] = warn) -> set[int]:
    """The best step, and that of each earlier search of the run.

    A search ends when training.best_metric or the way of measuring changes. Restoring the old value
    restores the old best.

    Args:
      directory: holds the checkpoints.
      ranking: finds the best now.
      report: called with a line on each whose metrics are damaged; it is left out.

    Raises:
      InputError: the directory cannot be listed.
    """
    found = evaluated_steps(directory, report)
    best = set(_rank_like_newest(found, ranking)[:1])
    now = ranking.best_metric
    for metric in {one.sought(now) for one in found} & ranking.metrics.keys():
        search = [one for one in found if one.sought(now) == metric]
        for alike in _alike(search, ranking.by(metric)):
            best |= set(_rank(alike, ranking.by(metric))[:1])
    return best


def _rank_like_newest(found: list[Evaluated], ranking: Ranking) -> list[int]:
    alike = _alike([one for one in found if ranking.best_metric in one.metrics], ranking)
    return _rank(alike[0], ranking) if alike else []


def _alike(found: list[Evaluated], ranking: Ranking) -> list[list[Evaluated]]:
    """Checkpoints grouped by how they were measured, the group of the newest first."""
    ways = [measurement(one.identity, ranking) for one in found]
    distinct = [way for place, way in enumerate(ways) if way not in ways[place + 1 :]]
    return [
        [one for one, its in zip(found, ways, strict=True) if measured_alike(its, way)]
        for way in reversed(distinct)
    ]


def _rank(found: list[Evaluated], ranking: Ranking) -> list[int]:
    sign = 1.0 if ranking.higher_is_better else -1.0
    values = [(sign * one.metrics.get(ranking.best_metric, math.nan), one.step) for one in found]
    return [step for value, step in sorted(v for v in values if math.isfinite(v[0]))][::-1]


def resolve_checkpoint(directory: Path, name: str, ranking: Ranking) -> Path:
    """The folder of a checkpoint named `best`, `latest`, by its step, or by an average's name.

    Args:
      directory: holds the checkpoints.
      name: name of the checkpoint.
      ranking: finds the best.

    Raises:
      InputError: there is no such checkpoint; the message lists the existing ones.
    """
    folders = step_folders(directory)
    # Without a finished one, the loader reports what the unfinished ones lack.
    steps = list_steps(directory) or folders
    named = [name for name in average_names(directory) if is_file(directory / name / MANIFEST)]
    if not steps and not named:
        raise InputError(
            f"{directory} holds no checkpoint; train first: python train.py --workdir="
            f"{directory.parent}"
        )
    if name == "best" and steps:
        ranked = ranked_steps(directory, ranking)
        return directory / str(ranked[0] if ranked else steps[-1])
    if name == "latest" and steps:
        return directory / str(steps[-1])
    if name in named or name in map(str, folders):
        return directory / name
    there = ", ".join([*(("best", "latest") if steps else ()), *map(str, steps), *named])
    raise InputError(f"--checkpoint={name} is not in {directory}; there are: {there}")
