"""Training curves of one or several runs, from their metrics.jsonl."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxformer.errors import InputError, check_range
from jaxformer.storage.metrics_file import read_lines
from jaxformer.storage.workdir import Workdir
from jaxformer.visualization.figures import (
    COLOURS,
    LINE_STYLES,
    MARKERS,
    MUTED,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_RUNS = len(COLOURS)


class Panel(NamedTuple):
    """One logged metric over the updates.

    Attributes:
      title: of the panel, with the unit.
      metric: name in metrics.jsonl.
      splits: train is a line, validation a line with marks.
    """

    title: str
    metric: str
    splits: tuple[str, ...]


PANELS = (
    Panel("Loss (nats a target token)", "loss", ("train", "validation")),
    Panel("BLEU on validation", "bleu", ("validation",)),
    Panel("Learning rate", "learning_rate", ("train",)),
    Panel("Speed (target tokens/s)", "target_tokens_per_second", ("train",)),
)


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, in the order they were written.

    An incomplete last line is skipped, since a running job is still writing it. A damaged line is
    skipped with a warning.

    Raises:
      InputError: the folder is not a workdir, or nothing has been logged yet.
    """
    run = Workdir(Path(workdir))
    if not run.path.is_dir():
        raise InputError(f"--workdir={workdir}: no such folder")
    if not run.metrics_file.is_file():
        raise InputError(f"{workdir} has no metrics.jsonl: it is not the workdir of a run")
    lines = read_lines(run.metrics_file.read_bytes())
    for line in lines:
        if line.row is None:
            print(
                f"warning: {run.metrics_file}, line {line.number} is skipped: {line.problem}",
                file=sys.stderr,
            )
    rows = [line.row for line in lines if line.row is not None]
    if not any(row["split"] in ("train", "validation") for row in rows):
        raise InputError(f"{run.metrics_file} holds no figures yet: training has not logged a step")
    return rows


def series(
    rows: Sequence[Mapping[str, Any]], metric: str, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """The values of a metric by update; of a step logged twice, the last value counts.

    Args:
      rows: from `read_metrics`.
      metric: name in metrics.jsonl.
      split: train, validation, ...

    Returns:
      Updates, int64 `[K]`, and values, float64 `[K]`; K is 0 if the run did not log the metric.
    """
    values = {}
    for row in rows:
        value = row.get(metric)
        if row["split"] == split and isinstance(value, int | float) and math.isfinite(value):
            values[row["step"]] = float(value)
    steps = sorted(values)
    return np.array(steps, np.int64), np.array([values[step] for step in steps], np.float64)


def run_names(workdirs: Sequence[str | Path]) -> list[str]:
    """The shortest path endings that distinguish workdirs: `pocket`, or `a/run`, `b/run`."""
    parts = [Path(workdir).resolve().parts for workdir in workdirs]
    longest = max(map(len, parts))
    for length in range(1, longest + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise InputError(f"the same workdir twice: {', '.join(map(str, workdirs))}")


@styled
def curves_figure(workdirs: Sequence[str | Path]) -> Figure:
    """Draw loss, BLEU, learning rate and speed of runs over their updates.

    Both losses use label-smoothed targets; the training loss includes dropout. Rollbacks are marked
    on the losses.

    Args:
      workdirs: one or several, named by the endings of their paths.

    Raises:
      InputError: a workdir has no metrics, is named twice, or there are too many.
    """
    check_range("number of workdirs", len(workdirs), 1, MAX_RUNS)
    names = run_names(workdirs)
    runs = [read_metrics(workdir) for workdir in workdirs]
    figure = new_figure(9.6, 6.2)
    axes = figure.subplots(2, 2, sharex=True)
    for panel, axis in zip(PANELS, axes.flat, strict=True):
        drawn = [
            _draw_run(axis, panel, rows, COLOURS[i], MARKERS[i]) for i, rows in enumerate(runs)
        ]
        axis.set_title(panel.title)
        axis.grid(True)
        axis.set_xlim(left=0)
        if not any(drawn):
            axis.text(0.5, 0.5, "not logged by these runs", transform=axis.transAxes, ha="center")
        if panel.metric == "learning_rate":
            axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
        if panel.metric in ("learning_rate", "target_tokens_per_second", "bleu"):
            highest = axis.dataLim.ymax if any(drawn) else 0.0
            axis.set_ylim(0.0, 1.05 * highest or 1.0)
        if panel.metric == "target_tokens_per_second":
            axis.yaxis.set_major_formatter("{x:,.0f}")
    for axis in axes[1]:
        axis.set_xlabel("update")
        axis.xaxis.set_major_formatter("{x:,.0f}")
    _draw_legend(figure, names, any(_rollbacks(rows) for rows in runs))
    return figure


def _draw_run(axis, panel: Panel, rows, colour: str, marker: str) -> bool:
    """Whether the run has values for the panel."""
    drawn = False
    for split in panel.splits:
        steps, values = series(rows, panel.metric, split)
        drawn |= len(steps) > 0
        if split == "train":
            axis.plot(steps, values, color=colour, linewidth=1.2)
        else:
            axis.plot(steps, values, color=colour, marker=marker, linestyle=LINE_STYLES[1])
    if panel.metric == "loss":
        for step in _rollbacks(rows):
            axis.axvline(step, color=colour, linestyle=LINE_STYLES[2], linewidth=1.0)
    return drawn


def _rollbacks(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    return [row["step"] for row in rows if row["split"] == "rollback"]


def _draw_legend(figure, names: Sequence[str], rollbacks: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[i], marker=MARKERS[i], label=name)
        for i, name in enumerate(names)
    ]
    handles.append(Line2D([], [], color=MUTED, label="training", linewidth=1.2))
    handles.append(
        Line2D([], [], color=MUTED, linestyle=LINE_STYLES[1], marker=".", label="validation")
    )
    if rollbacks:
        handles.append(Line2D([], [], color=MUTED, linestyle=LINE_STYLES[2], label="rollback"))
    figure.legend(handles=handles, loc="outside upper left", ncols=4, handlelength=3.2)
