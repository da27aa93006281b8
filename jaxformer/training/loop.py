"""The life of a run: evaluate, save, step, log, until the end."""

from __future__ import annotations

import dataclasses
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import jax

from jaxformer.config import Config, TrainingConfig
from jaxformer.data.loader import BatchLoader
from jaxformer.evaluation.evaluate import Evaluation
from jaxformer.storage.checkpoint import Checkpointer
from jaxformer.training.memory import check_memory, explain_out_of_memory
from jaxformer.training.metrics import MetricsWriter, Progress, format_seconds, log
from jaxformer.training.prefetch import DeviceBatches
from jaxformer.training.profiling import StepTrace
from jaxformer.training.recorder import Recorder
from jaxformer.training.setup import Run, describe_run, prepare_run
from jaxformer.training.signals import StopSignals
from jaxformer.training.state import TrainState, create_state
from jaxformer.training.validation import (
    Selection,
    evaluate_held_out,
    evaluate_validation,
    format_evaluation,
)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """How a start of a run ended.

    Attributes:
      step: updates done in all.
      reason: why it ended.
      exit_status: 0, or 130 and 143 after a signal.
      evaluations: of the held-out roles with the best checkpoint; empty after a signal.
    """

    step: int
    reason: str
    exit_status: int
    evaluations: dict[str, Evaluation]


def train(config: Config, workdir: str | Path) -> TrainingResult:
    """Train, or go on training, the run in `workdir`, to its end.

    Raises:
      InputError: the configuration, the data or the workdir cannot work, or memory runs out.
      FloatingPointError: training diverged.
    """
    # --- what is trained, and from which step -------------------------------------------------
    started = time.monotonic()
    run = prepare_run(config, Path(workdir))
    config, settings = run.config, run.config.training
    log(describe_run(run))
    checkpointer = Checkpointer(
        run.workdir.checkpoints, keep=settings.keep_checkpoints, best_metric=settings.best_metric
    )
    if (checkpointer.latest_step or 0) < settings.num_steps:
        check_memory(run)
    state, selection, step = restore_or_create(run, checkpointer)
    writer = MetricsWriter(run.workdir.metrics_file, step)
    loader = BatchLoader(
        run.corpus,
        run.plan,
        pad_id=run.task.pad_id,
        start_step=step,
        sampler=run.sampler,
        workers=config.data.workers,
    )
    batches = DeviceBatches(iter(loader), run.mesh)
    dropout_key = jax.random.key(config.seed + 1)
    progress = Progress(step, settings.num_steps)
    recorder = Recorder(run, writer, progress)
    trace = StepTrace(run.workdir.path / "profile", step, settings.profile_steps)
    first, saved, reason = step, step, ""

    with (
        closing(loader),
        closing(progress),
        StopSignals() as signals,
        trace,
        explain_out_of_memory(config),
    ):
        while True:
            # --- evaluate: at the interval and at the end -------------------------------------
            finished = step >= settings.num_steps
            metrics = None
            if step > saved and (step % settings.eval_every == 0 or finished):
                recorder.settle(step)
                progress.pause()
                metrics = evaluate_validation(run, state, selection, writer, step)
                progress.unpause()
            # --- why to stop ------------------------------------------------------------------
            over = 0 < settings.max_seconds <= time.monotonic() - started and step > first
            reason = reason_to_stop(settings, step, signals, selection, over=over)
            # --- save: at the interval, at each evaluation and before a stop ------------------
            if step > saved and (step % settings.save_every == 0 or metrics or reason):
                recorder.settle(step)
                progress.pause()
                checkpointer.save(
                    step, state, {"selection": dataclasses.asdict(selection)}, metrics
                )
                progress.unpause()
                saved = step
            if reason:
                break
            # --- step, while the batch of the next one is sent --------------------------------
            batch = batches.take()
            state, step_sums = trace.run(step, run.train_step, state, batch, dropout_key)
            batches.fetch()
            step += 1
            # --- log what the devices have done -----------------------------------------------
            recorder.add(step, step_sums)

    # --- the end ------------------------------------------------------------------------------
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


def reason_to_stop(
    settings: TrainingConfig, step: int, signals: StopSignals, selection: Selection, *, over: bool
) -> str:
    """Why the loop ends after `step` updates, empty if it goes on; `over`: the time is."""
    if step >= settings.num_steps:
        return f"all {settings.num_steps:,} steps are done"
    if signals.received is not None:
        return f"{signals.received.name} received"
    if settings.patience and selection.waiting >= settings.patience:
        return (
            f"{selection.waiting} evaluations without a better {settings.best_metric} "
            "(training.patience)"
        )
    return f"training.max_seconds={settings.max_seconds:g} are over" if over else ""


def restore_or_create(run: Run, checkpointer: Checkpointer) -> tuple[TrainState, Selection, int]:
    """The newest saved state, or the first one."""
    step = checkpointer.latest_step
    if step is None:
        return create_state(run.init, jax.random.key(run.config.seed), run.abstract), Selection(), 0
    state, meta = checkpointer.restore(step, run.abstract)
    log(f"resuming from the checkpoint of step {step:,} in {run.workdir.checkpoints}")
    return state, Selection(**meta["selection"]), step


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
