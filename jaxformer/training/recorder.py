"""What is written and printed of each log interval, once the devices have delivered it."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.evaluation.evaluate import summarize
from jaxformer.parallel.device_peaks import peak_flops
from jaxformer.training.flops import training_flops
from jaxformer.training.metrics import Interval, IntervalSums, MetricsWriter, Progress
from jaxformer.training.setup import Run

MEASURED_PAIRS = 1_000_000  # of a larger corpus, evenly spread, tell the mean FLOPs of a token


class Recorder:
    """Follows the steps of a start; a log line comes when its interval is done, not before.

    Args:
      run: what is trained.
      writer: of metrics.jsonl.
      progress: the bar, whose clock measures the speed.
    """

    def __init__(self, run: Run, writer: MetricsWriter, progress: Progress):
        self._run, self._writer, self._progress = run, writer, progress
        settings = run.config.training
        self._ends = lambda step: step % settings.log_every == 0 or step == settings.num_steps
        self._sums = IntervalSums(self._ends)
        self._flops_per_token = flops_per_target_token(run)
        self._peak = mesh_peak_flops(run)

    def add(self, step: int, sums: dict[str, jax.Array]) -> None:
        """Take in the metric sums of the dispatched update number `step`."""
        if self._ends(step):  # computed on the device in its turn: asking later would wait
            sums = sums | {"learning_rate": jnp.asarray(self._run.schedule(step - 1))}
        interval = self._sums.add(step, sums)
        self._progress.advance()
        if interval is not None:
            self._record(interval)

    def settle(self, step: int) -> None:
        """Wait for all steps up to `step`, record the intervals among them, check the last loss.

        Raises:
          FloatingPointError: training diverged; to be called before a state is evaluated or saved.
        """
        for interval in self._sums.flush():
            self._record(interval)
        check_finite(self._run, self._sums.loss, self._sums.gradient_norm, step)

    def _record(self, interval: Interval) -> None:
        sums = interval.sums
        check_finite(self._run, sums["loss"], sums["gradient_norm"], interval.step)
        values = self._figures(interval, self._progress.interval())
        self._writer.write(interval.step, "train", values)
        self._progress.show(interval.step, values, values["seconds_per_step"])

    def _figures(self, interval: Interval, seconds: float) -> dict[str, float]:
        run, sums = self._run, interval.sums
        speed = sums["tokens"] / seconds
        values = summarize(sums) | {
            "learning_rate": sums["learning_rate"],
            "gradient_norm": sums["gradient_norm"] / interval.steps,
            "target_tokens_per_second": speed,
            "seconds_per_step": seconds / interval.steps,
            "epoch": interval.step / run.plan.steps_per_epoch,
            "model_flops_per_second": speed * self._flops_per_token,
        }
        if self._peak is not None:
            values["mfu"] = values["model_flops_per_second"] / self._peak
        return values


def check_finite(run: Run, loss: float, gradient_norm: float, step: int) -> None:
    """Raise `FloatingPointError` if training diverged: before such a state is saved."""
    if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
        raise FloatingPointError(
            f"the loss is {loss} and the gradient's norm {gradient_norm} at step {step:,}; the "
            f"last good checkpoint is in {run.workdir.checkpoints}; lower "
            "optimizer.learning_rate, or set optimizer.clip_norm"
        )


def flops_per_target_token(run: Run) -> float:
    """Mean of `training_flops` over the corpus; R-Drop sends each sentence through twice."""
    corpus = run.corpus
    pairs = np.arange(0, len(corpus), max(len(corpus) // MEASURED_PAIRS, 1))
    source, target = (
        offsets[pairs + 1] - offsets[pairs]
        for offsets in (corpus.source_offsets, corpus.target_offsets)
    )
    passes = 2 if run.config.training.r_drop_alpha > 0.0 else 1
    return passes * training_flops(run.config.model, source, target) / float(target.sum())


def mesh_peak_flops(run: Run) -> float | None:
    """Published peak of all devices of the run together, FLOP/s; None if it is not known."""
    devices = run.mesh.devices
    peak = peak_flops(devices.flat[0].device_kind, run.config.model.dtype)
    return None if peak is None else peak * devices.size
