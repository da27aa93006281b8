"""The life of a run: evaluate, save, next batch, step, log, until the end."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import jax

from jaxformer.config import Config
from jaxformer.data.loader import BatchLoader
from jaxformer.evaluation.evaluate import Evaluation, summarize
from jaxformer.parallel.sharding import shard_batch
from jaxformer.storage.checkpoint import (
    HIGHER_IS_BETTER,
    Checkpointer,
    load_params,
    resolve_checkpoint,
)
from jaxformer.storage.workdir import write_atomically
from jaxformer.training.metrics import (
    MetricSums,
    MetricsWriter,
    Progress,
    format_seconds,
    log,
)
from jaxformer.training.setup import Run, describe_run, prepare_run
from jaxformer.training.signals import StopSignals
from jaxformer.training.state import TrainState, create_state


@dataclasses.dataclass
class Selection:
    """The search for the best evaluation; saved with each checkpoint.

    Attributes:
      best: value of training.best_metric, None before the first evaluation.
      best_step: where it was seen.
      waiting: evaluations since then.
    """

    best: float | None = None
    best_step: int = 0
    waiting: int = 0

    def update(self, value: float, step: int, *, higher: bool) -> bool:
        """Take an evaluation in; True if it is the best so far."""
        better = self.best is None or (value > self.best if higher else value < self.best)
        if better:
            self.best, self.best_step, self.waiting = value, step, 0
        else:
            self.waiting += 1
            if value == self.best:
                self.best_step = step  # of equal ones the checkpoint of the later is kept
        return better


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """How a start of a run ended.

    Attributes:
      step: updates done in all.
      reason: why it ended.
      exit_status: 0, or 130 and 143 after a signal.
      evaluations: of the held-out roles with the best checkpoint; empty unless the run is complete.
    """

    step: int
    reason: str
    exit_status: int
    evaluations: dict[str, Evaluation]


def train(config: Config, workdir: str | Path) -> TrainingResult:
    """Train, or go on training, the run in `workdir`, to its end.

    Raises:
      InputError: the configuration, the data or the workdir cannot work.
    """
    # --- what is trained, and from which step -------------------------------------------------
    run = prepare_run(config, Path(workdir))
    config, settings = run.config, run.config.training
    log(describe_run(run))
    checkpointer = Checkpointer(
        run.workdir.checkpoints, keep=settings.keep_checkpoints, best_metric=settings.best_metric
    )
    state, selection, step = restore_or_create(run, checkpointer)
    writer = MetricsWriter(run.workdir.metrics_file, step)
    loader = BatchLoader(run.corpus, run.plan, pad_id=run.task.pad_id, start_step=step)
    batches = iter(loader)
    dropout_key = jax.random.key(config.seed + 1)
    progress = Progress(step, settings.num_steps)
    sums, step_sums, first, saved, reason = MetricSums(), {"loss": 0.0}, step, step, ""
    started = time.monotonic()
    interval_start = step

    with StopSignals() as signals:
        while True:
            # --- evaluate: at the interval and at the end -------------------------------------
            finished = step >= settings.num_steps
            metrics = None
            if step > saved and (step % settings.eval_every == 0 or finished):
                progress.pause()
                check_finite(run, step_sums["loss"], step)
                metrics = evaluate_validation(run, state, selection, writer, step)
                progress.unpause()
            # --- why to stop ------------------------------------------------------------------
            if finished:
                reason = f"all {settings.num_steps:,} steps are done"
            elif signals.received is not None:
                reason = f"{signals.received.name} received"
            elif settings.patience and selection.waiting >= settings.patience:
                reason = (
                    f"{selection.waiting} evaluations without a better {settings.best_metric} "
                    "(training.patience)"
                )
            elif 0 < settings.max_seconds <= time.monotonic() - started and step > first:
                reason = f"training.max_seconds={settings.max_seconds:g} are over"
            # --- save: at the interval, at each evaluation and before a stop ------------------
            if step > saved and (step % settings.save_every == 0 or metrics or reason):
                progress.pause()
                check_finite(run, step_sums["loss"], step)
                checkpointer.save(
                    step, state, {"selection": dataclasses.asdict(selection)}, metrics
                )
                progress.unpause()
                saved = step
            if reason:
                break
            # --- next batch and step ----------------------------------------------------------
            batch = shard_batch(next(batches), run.mesh)
            state, step_sums = run.train_step(state, batch, dropout_key)
            sums.add(step_sums)
            step += 1
            progress.advance()
            # --- log --------------------------------------------------------------------------
            if step % settings.log_every == 0 or step == settings.num_steps:
                values = interval_metrics(run, sums.fetch(), step, step - interval_start, progress)
                interval_start = step
                writer.write(step, "train", values)
                progress.show(step, values, values["seconds_per_step"])

    # --- the end ------------------------------------------------------------------------------
    progress.close()
    loader.close()
    checkpointer.wait()
    checkpointer.close()
    log(
        f"stopped at step {step:,}: {reason}; {format_seconds(time.monotonic() - started)} "
        "since this start"
    )
    complete = signals.received is None
    evaluations = evaluate_held_out(run, writer, step) if complete else {}
    writer.close()
    log(closing_summary(run, selection, step, evaluations, complete=complete))
    return TrainingResult(step, reason, signals.exit_status, evaluations)


def restore_or_create(run: Run, checkpointer: Checkpointer) -> tuple[TrainState, Selection, int]:
    """The newest saved state, or the first one."""
    step = checkpointer.latest_step
    if step is None:
        return create_state(run.init, jax.random.key(run.config.seed), run.mesh), Selection(), 0
    state, meta = checkpointer.restore(step, run.abstract)
    log(f"resuming from the checkpoint of step {step:,} in {run.workdir.checkpoints}")
    return state, Selection(**meta["selection"]), step


def check_finite(run: Run, loss: float | jax.Array, step: int) -> None:
    """Raise `FloatingPointError` if training diverged: before such a state is saved."""
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"the loss is {float(loss)} at step {step:,}; the last good checkpoint is in "
            f"{run.workdir.checkpoints}; lower optimizer.learning_rate, or set optimizer.clip_norm"
        )


def interval_metrics(
    run: Run, sums: dict[str, float], step: int, steps: int, progress: Progress
) -> dict[str, float]:
    """Figures of the steps since the last log line."""
    check_finite(run, sums["loss"], step)
    seconds = progress.interval()
    return summarize(sums) | {
        "learning_rate": float(run.schedule(step - 1)),
        "gradient_norm": sums["gradient_norm"] / steps,
        "target_tokens_per_second": sums["tokens"] / seconds,
        "seconds_per_step": seconds / steps,
        "epoch": step / run.plan.steps_per_epoch,
    }


def evaluate_validation(
    run: Run, state: TrainState, selection: Selection, writer: MetricsWriter, step: int
) -> dict[str, float]:
    """Loss, BLEU and chrF on the validation split; logs them with a few samples."""
    settings = run.config.training
    result = run.evaluator.measure(
        state.eval_params,
        run.validation,
        dataclasses.replace(run.config.decoding, beam_size=settings.eval_beam_size),
        count=settings.eval_sentences,
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
    run.workdir.samples.mkdir(exist_ok=True)
    rows = ["source\treference\ttranslation"]
    rows += ["\t".join(x.replace("\t", " ") for x in (*pair, text)) for pair, text in shown]
    write_atomically(run.workdir.samples / f"step_{step}.tsv", "\n".join(rows) + "\n")
    return metrics


def evaluate_held_out(run: Run, writer: MetricsWriter, step: int) -> dict[str, Evaluation]:
    """The best checkpoint on the test split and, where there is one, the compositional split."""
    roles = [role for role in ("test", "compositional") if role in run.source.roles]
    if not roles:
        return {}
    folder = resolve_checkpoint(run.workdir.checkpoints, "best", run.config.training.best_metric)
    params = load_params(folder, run.abstract.params)
    evaluations = {}
    for role in roles:
        evaluations[role] = run.evaluator.measure(
            params,
            run.evaluator.load(run.source, role),
            run.config.decoding,
            description=f"translating {role}",
        )
        writer.write(step, role, evaluations[role].metrics())
    return evaluations


def format_evaluation(result: Evaluation) -> str:
    """One line of figures."""
    return (
        f"BLEU {result.scores.bleu:.2f}  chrF {result.scores.chrf:.2f}  loss {result.loss:.3f}  "
        f"perplexity {result.perplexity:.2f}  accuracy {result.accuracy:.1%}  "
        f"{result.sentences / result.seconds:,.0f} sentences/s"
    )


def closing_summary(
    run: Run, selection: Selection, step: int, evaluations: dict[str, Any], *, complete: bool
) -> str:
    """What was reached, where it is, and what to do next."""
    lines = [
        f"done: {step:,} steps in {run.workdir.path}"
        if complete
        else f"saved: step {step:,} in {run.workdir.path}"
    ]
    if selection.best is not None:
        lines.append(
            f"best           {run.config.training.best_metric} {selection.best:.2f} on validation, "
            f"step {selection.best_step:,}"
        )
    for role, result in evaluations.items():
        lines.append(f"{role:<15}{format_evaluation(result)}")
    if evaluations:
        lines.append(f"               {next(iter(evaluations.values())).scores.bleu_signature}")
    if complete:
        lines.append(f"next           python -m jaxformer translate --workdir={run.workdir.path}")
    else:
        lines.append("next           the same command goes on from here")
    return "\n".join(lines)
