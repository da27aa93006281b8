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
from jaxformer.evaluation.evaluator import Evaluation
from jaxformer.files.streams import log_streams
from jaxformer.parallel.mesh import batch_share
from jaxformer.runtime import distributed
from jaxformer.storage.checkpoint import Checkpointer
from jaxformer.storage.lock import WorkdirLock
from jaxformer.tasks.registry import ranking_of
from jaxformer.training.checks.memory import check_memory, explain_out_of_memory
from jaxformer.training.guards.rollback import roll_back
from jaxformer.training.guards.signals import StopSignals
from jaxformer.training.guards.watchdog import Watchdog
from jaxformer.training.metrics import MetricsWriter, Progress, format_seconds, log
from jaxformer.training.prefetch import DeviceBatches
from jaxformer.training.profiling import StepTrace
from jaxformer.training.random_keys import initial_key, training_key
from jaxformer.training.recorder import Recorder
from jaxformer.training.resume import record_changes, resumed_changes
from jaxformer.training.setup import Run, describe_run, prepare_run
from jaxformer.training.state import TrainState
from jaxformer.training.validation import (
    Selection,
    evaluate_held_out,
    evaluate_validation,
    resumed_selection,
)
from jaxformer.training.warm_start import fitting_parameters, warm_start


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """How a start of a run ended.

    Attributes:
      step: updates done in all.
      reason: why it ended.
      exit_status: 0, or 130 and 143 after a signal.
      evaluations: evaluations of the held-out splits with the best checkpoint; empty if a signal or
        training.max_seconds ended this start.
    """

    step: int
    reason: str
    exit_status: int
    evaluations: dict[str, Evaluation]


def train(
    config: Config,
    workdir: str | Path,
    *,
    allow_changes: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
) -> TrainingResult:
    """Train the run in `workdir` to its end; resumes from its newest checkpoint.

    Args:
      config: configuration of the run.
      workdir: its folder.
      allow_changes: names of fields and sections that may differ from the run in the workdir,
        even though that alters its training.
      devices: to train on; None: all of the job.

    Raises:
      InputError: the configuration, the data or the workdir is unusable, memory runs out, or
        another run holds the workdir.
      FloatingPointError: training diverged.
      SystemExit: a signal came before the first step or after the last.
    """
    folder, floor = Path(workdir), config.training.watchdog_seconds
    started = time.monotonic()
    with (
        log_streams(),
        StopSignals(distributed.any_process) as signals,
        WorkdirLock(folder, log=log)
        if distributed.is_first_process()
        else contextlib.nullcontext() as lock,
        Watchdog(folder / "stacks.txt", floor=floor) as watchdog,
    ):
        run = prepare_run(config, folder, allow_changes, devices)
        return train_guarded(run, signals, lock, watchdog, started)


def train_guarded(
    run: Run,
    signals: StopSignals,
    lock: WorkdirLock | None,
    watchdog: Watchdog,
    started: float,
) -> TrainingResult:
    """`train`, once the guards are up.

    Args:
      run: from `prepare_run`.
      signals: end it between two steps.
      lock: lock of the workdir; None in all processes but the first.
      watchdog: ends a run without a sign of life.
      started: `time.monotonic()` at the start, seconds.
    """
    # --- what is trained, and from which step -------------------------------------------------
    config, settings = run.config, run.config.training
    log(describe_run(run))
    checkpointer = Checkpointer(
        run.workdir.checkpoints,
        keep=settings.keep_checkpoints,
        ranking=ranking_of(config),
        report=log,
    )
    if config.init_from and checkpointer.latest_step is None:
        fitting_parameters(run)  # minutes before they are loaded
    if (checkpointer.latest_step or 0) < settings.num_steps:
        with watchdog.pause("compiling"):
            check_memory(run)
        checkpointer.check_space(run.abstract)
    with watchdog.pause("restoring the state"):
        state, meta, step = restore_or_create(run, checkpointer)
    changes = resumed_changes(run.origin, run.identity, meta, step) if meta else []
    selection = resumed_selection(meta, changes, ranking_of(config))
    writer = MetricsWriter(run.workdir.metrics_file, step)
    record_changes(writer, step, changes)
    loader = BatchLoader(run.dataset, batch_share(run.mesh), start_step=step)
    batches = DeviceBatches(iter(loader), run.mesh)
    key = training_key(config)
    progress = Progress(step, settings.num_steps, run.objective.unit)
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
        explain_out_of_memory(run.task, config, run.mesh),
    ):
        while True:
            # --- roll back to an older state, if the loss spiked ------------------------------
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
                state, step_sums = trace.run(step, run.train_step, state, batch, key)
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
    """Why the loop ends, and whether the run is then complete; the same in all processes.

    Args:
      settings: settings of the run.
      step: updates done.
      signals: received so far.
      selection: the search for the best evaluation.
      over: training.max_seconds have passed, by the clock of this process.

    Returns:
      The reason, empty if the loop continues, and True if the run needs no other start.
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
    return f"training.max_seconds={settings.max_seconds:g} have passed" if stop else "", False


@contextlib.contextmanager
def paused(station: str, progress: Progress, watchdog: Watchdog) -> Iterator[None]:
    """Run something other than steps: the speed excludes it, and the watchdog allows it more time.

    Args:
      station: its name, for the watchdog.
      progress: its clock pauses.
      watchdog: watchdog of the run.
    """
    progress.pause()
    with watchdog.pause(station):
        yield
    progress.unpause()


def restore_or_create(
    run: Run, checkpointer: Checkpointer
) -> tuple[TrainState, dict[str, Any], int]:
    """The newest saved state, its meta and step; else a first state, empty meta and 0."""
    step = checkpointer.newest_verified()
    if step is None:
        state = run.program.first_state(initial_key(run.config), run.mesh)
        return (warm_start(run, state) if run.config.init_from else state), {}, 0
    state, meta = checkpointer.restore(step, run.abstract)
    log(f"resuming from the checkpoint of step {step:,} in {run.workdir.checkpoints}")
    return state, meta, step


def closing_summary(
    run: Run, selection: Selection, step: int, evaluations: dict[str, Any], *, complete: bool
) -> str:
    """Lines for the log: what was reached, where it is, and what to do next.

    Args:
      run: what was trained.
      selection: the search for the best evaluation.
      step: updates done.
      evaluations: evaluations of the held-out splits, by name.
      complete: False: the run can be resumed.
    """
    lines = [
        f"done: {step:,} steps in {run.workdir.path}"
        if complete
        else f"saved: step {step:,} in {run.workdir.path}"
    ]
    if selection.best is not None:
        lines.append(
            f"best           {run.config.training.best_metric} {selection.best:.4g} on validation, "
            f"step {selection.best_step:,}"
        )
    for split, result in evaluations.items():
        lines.append(f"{split:<15}{result.summary()}")
    for note in next(iter(evaluations.values())).notes().values() if evaluations else ():
        lines.append(f"               {note}")
    if not complete:
        lines.append("next           the same command continues from here")
    elif run.task.next_command:
        command = f"python -m jaxformer {run.task.next_command}"
        lines.append(f"next           {command} --workdir={run.workdir.path}")
    return "\n".join(lines)
