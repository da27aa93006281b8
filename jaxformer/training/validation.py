"""Evaluate a run on held-out data, and search for its best checkpoint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxformer.evaluation.evaluator import HELD_OUT, Evaluation, Samples
from jaxformer.runtime.distributed import is_first_process
from jaxformer.storage.changes import Change
from jaxformer.storage.checkpoint import load_params, resolve_checkpoint
from jaxformer.storage.measurement import Ranking
from jaxformer.storage.workdir import write_atomically
from jaxformer.tasks.registry import ranking_of
from jaxformer.training.metrics import MetricsWriter, log
from jaxformer.training.resume import is_measured_alike, search_measures
from jaxformer.training.setup import Run
from jaxformer.training.state import TrainState


@dataclasses.dataclass
class Selection:
    """The search for the best evaluation; saved with each checkpoint.

    Attributes:
      best: value of training.best_metric, None before the first evaluation.
      best_step: at which it was measured.
      waiting: evaluations since then.
      earlier: searches by other measures, each with `measured` and the three fields above; one
        resumes when its old values return.
    """

    best: float | None = None
    best_step: int = 0
    waiting: int = 0
    earlier: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def update(self, value: float, step: int, *, higher: bool) -> bool:
        """Count an evaluation.

        Args:
          value: of training.best_metric; never the best if it is not finite.
          step: at which it was measured.
          higher: whether higher values are better.

        Returns:
          Whether it is the best so far.
        """
        better = math.isfinite(value) and (
            self.best is None or (value > self.best if higher else value < self.best)
        )
        if better:
            self.best, self.best_step, self.waiting = value, step, 0
        else:
            self.waiting += 1
            if value == self.best:
                self.best_step = step  # of equal values the later checkpoint is kept
        return better


def resumed_selection(
    meta: dict[str, Any], changes: Sequence[Change], ranking: Ranking
) -> Selection:
    """The search of a checkpoint, or another one if figures are now measured differently.

    The other one is an earlier search with the same measures, or a new one; `best` agrees.

    Args:
      meta: `meta` of the restored checkpoint; empty if there is none.
      changes: since it was saved.
      ranking: ranking of the checkpoints.
    """
    saved = Selection(**meta.get("selection", {}))
    if is_measured_alike(meta, changes, ranking):
        return saved
    before, after = search_measures(meta, changes, ranking)
    fields = dataclasses.asdict(saved)
    searches = [*fields.pop("earlier"), {"measured": before} | fields]
    found = next((one for one in searches if one["measured"] == after), {})
    log(
        "evaluations are measured differently from here on: the search for the best "
        + ("resumes from the steps measured like this" if found else "starts over")
    )
    earlier = [one for one in searches if one is not found]
    again = {name: value for name, value in found.items() if name != "measured"}
    return Selection(**again, earlier=earlier)


def evaluate_validation(
    run: Run,
    state: TrainState,
    selection: Selection,
    writer: MetricsWriter,
    step: int,
    *,
    alive: Callable[[], None],
) -> dict[str, float]:
    """The metrics on the validation split; logs them with a few samples.

    Args:
      run: what is trained.
      state: after `step` updates.
      selection: updated with the figures.
      writer: writer of metrics.jsonl.
      step: updates done.
      alive: called after each batch.
    """
    settings = run.config.training
    result = run.evaluator.measure(state.eval_params, run.validation, final=False, alive=alive)
    metrics, ranking = result.metrics(), ranking_of(run.config)
    better = selection.update(metrics[ranking.best_metric], step, higher=ranking.higher_is_better)
    writer.write(step, "validation", metrics | result.notes())
    log(f"step {step:,}  validation  {result.summary()}{'  best' if better else ''}")
    samples = result.samples()
    if samples is not None:
        width = max(map(len, samples.columns))
        for row in samples.rows[: settings.num_samples]:
            named = zip(samples.columns, row, strict=True)
            log("\n".join(f"    {name:<{width}} {text}" for name, text in named))
        if is_first_process():
            write_samples(run.workdir.samples / f"step_{step}.tsv", samples)
    return metrics


def write_samples(path: Path, samples: Samples) -> None:
    """Write samples as a TSV; a full disk is only reported."""
    rows = (tuple(text.replace("\t", " ") for text in row) for row in samples.rows)
    lines = ["\t".join(row) for row in (samples.columns, *rows)]
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, "\n".join(lines) + "\n")
    except OSError as error:
        log(f"{path} could not be written: {error.strerror}")


def evaluate_held_out(
    run: Run, writer: MetricsWriter, step: int, *, alive: Callable[[], None]
) -> dict[str, Evaluation]:
    """Evaluate the best checkpoint on each held-out split of the data.

    Args:
      run: what was trained.
      writer: writer of metrics.jsonl.
      step: updates done.
      alive: called after each batch.
    """
    splits = [split for split in HELD_OUT if split in run.evaluator.splits]
    if not splits:
        return {}
    folder = resolve_checkpoint(run.workdir.checkpoints, "best", ranking_of(run.config))
    params = load_params(folder, run.abstract.params)
    evaluations = {}
    for split in splits:
        evaluations[split] = run.evaluator.measure(
            params,
            run.evaluator.load(split),
            final=True,
            description=f"evaluating {split}",
            alive=alive,
        )
        writer.write(step, split, evaluations[split].metrics())
    return evaluations
