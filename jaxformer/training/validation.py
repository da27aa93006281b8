"""Measuring a run on held-out text, and the search for its best checkpoint."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxformer.evaluation.evaluate import Evaluation
from jaxformer.runtime.distributed import is_first_process
from jaxformer.storage.changes import Change
from jaxformer.storage.checkpoint import HIGHER_IS_BETTER, load_params, resolve_checkpoint
from jaxformer.storage.workdir import write_atomically
from jaxformer.training.metrics import HELD_OUT, MetricsWriter, log
from jaxformer.training.resume import is_measured_alike, search_measures
from jaxformer.training.setup import Run
from jaxformer.training.state import TrainState


@dataclasses.dataclass
class Selection:
    """The search for the best evaluation; saved with each checkpoint.

    Attributes:
      best: value of training.best_metric, None before the first evaluation.
      best_step: where it was seen.
      waiting: evaluations since then.
      earlier: searches by other measures, `measured` and the three fields above of each; one goes
        on when the old values come back.
    """

    best: float | None = None
    best_step: int = 0
    waiting: int = 0
    earlier: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def update(self, value: float, step: int, *, higher: bool) -> bool:
        """Take an evaluation in; True if it is the best so far. What is not finite never is."""
        better = math.isfinite(value) and (
            self.best is None or (value > self.best if higher else value < self.best)
        )
        if better:
            self.best, self.best_step, self.waiting = value, step, 0
        else:
            self.waiting += 1
            if value == self.best:
                self.best_step = step  # of equal ones the checkpoint of the later is kept
        return better


def resumed_selection(meta: dict[str, Any], changes: Sequence[Change]) -> Selection:
    """The search of a checkpoint; another one if figures are measured in another way from here on.

    That is an earlier one that was measured so, or a new one: as `best` ranks the checkpoints.
    """
    saved = Selection(**meta.get("selection", {}))
    if is_measured_alike(meta, changes):
        return saved
    before, after = search_measures(meta, changes)
    fields = dataclasses.asdict(saved)
    searches = [*fields.pop("earlier"), {"measured": before} | fields]
    found = next((one for one in searches if one["measured"] == after), {})
    log(
        "evaluations are measured in another way from here on: the best is "
        + ("that of the steps that were measured like this" if found else "looked for anew")
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
    """Loss, BLEU and chrF on the validation split; logs them with a few samples.

    `alive` is called after each batch.
    """
    settings = run.config.training
    result = run.evaluator.measure(
        state.eval_params,
        run.validation,
        dataclasses.replace(run.config.decoding, beam_size=settings.eval_beam_size),
        count=settings.eval_sentences,
        alive=alive,
    )
    metrics = result.metrics()
    better = selection.update(
        metrics[settings.best_metric], step, higher=HIGHER_IS_BETTER[settings.best_metric]
    )
    writer.write(step, "validation", metrics | {"bleu_signature": result.scores.bleu_signature})
    log(f"step {step:,}  validation  {format_evaluation(result)}{'  best' if better else ''}")
    shown = list(zip(run.validation.pairs, result.hypotheses, strict=False))
    for (source, reference), hypothesis in shown[: settings.num_samples]:
        log(f"    source      {source}\n    reference   {reference}\n    translation {hypothesis}")
    if is_first_process():
        write_samples(run.workdir.samples / f"step_{step}.tsv", shown)
    return metrics


def write_samples(path: Path, translated: list[tuple[tuple[str, str], str]]) -> None:
    """Write source, reference and translation as a TSV; a disk that is full is only reported."""
    rows = ["source\treference\ttranslation"]
    rows += ["\t".join(x.replace("\t", " ") for x in (*pair, text)) for pair, text in translated]
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, "\n".join(rows) + "\n")
    except OSError as error:
        log(f"{path} could not be written: {error.strerror}")


def evaluate_held_out(
    run: Run, writer: MetricsWriter, step: int, *, alive: Callable[[], None]
) -> dict[str, Evaluation]:
    """The best checkpoint on the test split and, where there is one, the compositional split.

    `alive` is called after each batch.
    """
    splits = [split for split in HELD_OUT if split in run.source.splits]
    if not splits:
        return {}
    folder = resolve_checkpoint(run.workdir.checkpoints, "best", run.config.training.best_metric)
    params = load_params(folder, run.abstract.params)
    evaluations = {}
    for split in splits:
        evaluations[split] = run.evaluator.measure(
            params,
            run.evaluator.load(run.source, split),
            run.config.decoding,
            description=f"translating {split}",
            alive=alive,
        )
        writer.write(step, split, evaluations[split].metrics())
    return evaluations


def format_evaluation(result: Evaluation) -> str:
    """One line of figures."""
    return (
        f"BLEU {result.scores.bleu:.2f}  chrF {result.scores.chrf:.2f}  loss {result.loss:.3f}  "
        f"perplexity {result.perplexity:.2f}  accuracy {result.accuracy:.1%}  "
        f"{result.sentences / result.seconds:,.0f} sentences/s"
    )
