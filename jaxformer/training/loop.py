"""The life of a run: evaluate, save, step, log, until the end."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax

from jaxformer.config import Config, TrainingConfig
from jaxformer.data.loader import BatchLoader
from jaxformer.evaluation.evaluate import Evaluation
from jaxformer.files.streams import log_streams
from jaxformer.parallel.mesh import batch_share
from jaxformer.runtime import distributed
from jaxformer.storage.checkpoint import Checkpointer
from jaxformer.storage.lock import WorkdirLock
from jaxformer.training.checks.memory import check_memory, explain_out_of_memory
from jaxformer.training.guards.rollback import roll_back
from jaxformer.training.guards.signals import StopSignals
from jaxformer.training.guards.watchdog import Watchdog
from jaxformer.training.metrics import MetricsWriter, Progress, format_seconds, log
from jaxformer.training.prefetch import DeviceBatches
from jaxformer.training.profiling import StepTrace
from jaxformer.training.recorder import Recorder
from jaxformer.training.resume import record_changes, resumed_changes
from jaxformer.training.setup import Run, describe_run, prepare_run
from jaxformer.training.state import TrainState
from jaxformer.training.validation import (
    Selection,
    evaluate_held_out,
    evaluate_validation,
    format_evaluation,
    resumed_selection,
)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """How a start of a run ended.

    Attributes:
      step: updates done in all.
      reason: why it ended.
      exit_status: 0, or 130 and 143 after a signal.
      evaluations: of the held-out splits with the best checkpoint; empty if a signal or
        training.max_seconds ended this start.
    """

    step: int
    reason: str
    exit_status: int
    evaluations: dict[str, Evaluation]


def train(
    config: Config, workdir: str | Path, *, allow_changes: Sequence[str] = ()
) -> TrainingResult:
    """Train, or go on training, the run in `workdir`, to its end.

    Args:
      config: of the run.
      workdir: its folder.
      allow_changes: names of fields and sections that may differ from the run in the workdir,
        although that trains something else.

    Raises:
      InputError: the configuration, the data or the workdir cannot work, memory runs out, or
        another run holds the workdir.
      FloatingPointError: training diverged.
      SystemExit: a signal came before the first step or after the last.
    """
    folder, floor = Path(workdir), config.training.watchdog_seconds
    with (
        log_streams(),
        StopSignals(distributed.any_process) as signals,
        WorkdirLock(folder, log=log)
        if distributed.is_first_process()
        else contextlib.nullcontext() as lock,
        Watchdog(folder / "stacks.txt", floor=floor) as watchdog,
    ):
        return train_guarded(config, folder, allow_changes, signals, lock, watchdog)


def train_guarded(
    config: Config,
    workdir: Path,
    allow_changes: Sequence[str],
    signals: StopSignals,
    lock: WorkdirLock | None,
    watchdog: Watchdog,
) -> TrainingResult:
    """`train`, once the guards are up; `lock` is None in all processes but the first."""
    # --- what is trained, and from which step -------------------------------------------------
    started = time.monotonic()
    run = prepare_run(config, workdir, allow_changes)
    config, settings = run.config, run.config.training
    log(describe_run(run))
    checkpointer = Checkpointer(
        run.workdir.checkpoints,
        keep=settings.keep_checkpoints,
        best_metric=settings.best_metric,
        report=log,
    )
    if (checkpointer.latest_step or 0) < settings.num_steps:
        with watchdog.pause("compiling"):
            check_memory(run)
        checkpointer.check_space(run.abstract)
    with watchdog.pause("restoring the state"):
        state, meta, step = restore_or_create(run, checkpointer)
    changes = resumed_changes(run.origin, run.identity, meta, step) if meta else []
    selection = resumed_selection(meta, changes)
    writer = MetricsWriter(run.workdir.metrics_file, step)
    record_changes(writer, step, changes)
    loader = BatchLoader(
        run.corpus,
        run.plan,
        pad_id=run.task.pad_id,
        share=batch_share(run.mesh),
        start_step=step,
        sampler=run.sampler,
        workers=config.data.workers,
    )
    batches = DeviceBatches(iter(loader), run.mesh)
    dropout_key = jax.random.key(config.seed + 1)
    progress = Progress(step, settings.num_steps)
    recorder = Recorder(run, writer, progress, meta.get("recorder", {}))
    trace = StepTrace(run.workdir.path / "profile", step, settings.profile_steps)
    first, saved = step, step
    watchdog.start(step)

    with (
        checkpointer,
        closing(loader),
        closing(progress),
        signals.noted(),
        trace,
        explain_out_of_memory(config, run.mesh),
    ):
        while True:
            # --- back to an older state, if the loss spiked -----------------------------------
            if recorder.spike is not None:
                with paused("going back to a checkpoint", progress, watchdog):
                    state, step = roll_back(run, checkpointer, recorder, state)
                    loader.seek(step)
                    batches = DeviceBatches(iter(loader), run.mesh)
            # --- evaluate: at the interval and at the end -------------------------------------
            finished = step >= settings.num_steps
            metrics = None
            if step > saved and (step % settings.eval_every == 0 or finished):
                if not recorder.settle(step, state):
                    continue
                if lock is not None:
                    lock.check(now=True)
                with paused("evaluating", progress, watchdog):
                    metrics = evaluate_validation(
                        run, state, selection, writer, step, alive=watchdog.alive
                    )
            # --- why to stop ------------------------------------------------------------------
            over = 0 < settings.max_seconds <= time.monotonic() - started and step > first
            reason, complete = reason_to_stop(settings, step, signals, selection, over=over)
            # --- save: at the interval, at each evaluation and before a stop ------------------
            if step > saved and (step % settings.save_every == 0 or metrics or reason):
                if not recorder.settle(step, state):
                    continue
                meta = {
                    "selection": dataclasses.asdict(selection),
                    "recorder": recorder.memory(),
                    "identity": run.identity.to_dict(),
                }
                if lock is not None:
                    lock.check(now=True)
                with paused("saving", progress, watchdog):
                    checkpointer.save(step, state, meta, metrics)
                saved = step
            if reason:
                with watchdog.pause("saving"):
                    checkpointer.wait()
                break
            # --- step, while the batch of the next one is sent --------------------------------
            if lock is not None:
                lock.check()
            batch = batches.take()
            with watchdog.dispatch(batch):
                state, step_sums = trace.run(step, run.train_step, state, batch, dropout_key)
            batches.fetch()
            step += 1
            # --- log what the devices have done -----------------------------------------------
            recorder.add(step, step_sums)
            watchdog.step_done(step)

    # --- the end ------------------------------------------------------------------------------
    log(
        f"stopped at step {step:,}: {reason}; {format_seconds(time.monotonic() - started)} "
        "since this start"
    )
    evaluations = {}
    complete = complete and not signals.agreed(step)  # a signal may have come since
    if complete:
        with watchdog.pause("evaluating the held-out splits"):
            evaluations = evaluate_held_out(run, writer, step, alive=watchdog.alive)
    writer.close()
    log(closing_summary(run, selection, step, evaluations, complete=complete))
    return TrainingResult(step, reason, signals.exit_status, evaluations)


def reason_to_stop(
    settings: TrainingConfig, step: int, signals: StopSignals, selection: Selection, *, over: bool
) -> tuple[str, bool]:
    """Why the loop ends after `step` updates, empty if it goes on, and whether the run is complete.

    The same in all processes; `over`: training.max_seconds are, by the clock of this one.
    """
    stop = signals.agreed(step, over=over)
    if step >= settings.num_steps:
        return f"all {settings.num_steps:,} steps are done", not signals.stopped
    if signals.stopped:
        name = signals.received.name if signals.received else "a signal in another process"
        return f"{name} received", False
    if settings.patience and selection.waiting >= settings.patience:
        return (
            f"{selection.waiting} evaluations without a better {settings.best_metric} "
            "(training.patience)"
        ), True
    return f"training.max_seconds={settings.max_seconds:g} are over" if stop else "", False


@contextlib.contextmanager
def paused(station: str, progress: Progress, watchdog: Watchdog) -> Iterator[None]:
    """Around what is no training: it does not count for the speed, and may take longer."""
    progress.pause()
    with watchdog.pause(station):
        yield
    progress.unpause()


def restore_or_create(
    run: Run, checkpointer: Checkpointer
) -> tuple[TrainState, dict[str, Any], int]:
    """The newest saved state, its meta and its step; or the first state, nothing and 0."""
    step = checkpointer.newest_verified()
    if step is None:
        return run.program.first_state(jax.random.key(run.config.seed), run.mesh), {}, 0
    state, meta = checkpointer.restore(step, run.abstract)
    log(f"resuming from the checkpoint of step {step:,} in {run.workdir.checkpoints}")
    return state, meta, step


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
    for split, result in evaluations.items():
        lines.append(f"{split:<15}{format_evaluation(result)}")
    if evaluations:
        lines.append(f"               {next(iter(evaluations.values())).scores.bleu_signature}")
    if complete:
        lines.append(f"next           python -m jaxformer translate --workdir={run.workdir.path}")
    else:
        lines.append("next           the same command goes on from here")
    return "\n".join(lines)
