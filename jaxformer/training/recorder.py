"""Write and print each log interval, once the devices have computed its figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.runtime.device_peaks import peak_flops
from jaxformer.training.guards.spikes import Spike, SpikeDetector
from jaxformer.training.metrics import Interval, IntervalSums, MetricsWriter, Progress, log
from jaxformer.training.setup import Run
from jaxformer.training.state import TrainState

STEP_SUMS = ("gradient_norm", "skipped", "learning_rate")  # of the train step, not of the loss


class Recorder:
    """Follows the steps of a start; logs an interval once its steps are computed.

    Each skipped update is reported in the log and in metrics.jsonl, with split `skipped`;
    training.max_skipped_steps of them in a row end training.

    Args:
      run: the run in training.
      writer: writer of metrics.jsonl.
      progress: the bar, whose clock measures the speed.
      memory: what `memory` returned when the restored state was saved.

    Attributes:
      spike: spike of the loss, for `roll_back` to handle before the next step; None almost always.
    """

    def __init__(
        self,
        run: Run,
        writer: MetricsWriter,
        progress: Progress,
        memory: dict[str, Any] | None = None,
    ):
        self._run, self._writer, self._progress = run, writer, progress
        settings = run.config.training
        self._ends = lambda step: step % settings.log_every == 0 or step == settings.num_steps
        self._sums = IntervalSums(self._ends, self._check)
        self._flops_per_unit = run.objective.flops_per_unit(run.dataset)
        self._peak = mesh_peak_flops(run)
        memory = memory or {}
        self._skipped: list[int] = memory.get("skipped", [])  # steps, in a row up to the newest
        self._spikes = SpikeDetector(**memory.get("spikes", {}))
        self.spike: Spike | None = None

    def add(self, step: int, sums: dict[str, jax.Array]) -> None:
        """Take in the metric sums of the dispatched update number `step`."""
        if self._ends(step):  # queued on the device now: computing it later would wait
            sums = sums | {"learning_rate": jnp.asarray(self._run.program.schedule(step - 1))}
        interval = self._sums.add(step, sums)
        self._progress.advance()
        if interval is not None:
            self._record(interval)

    def settle(self, step: int, state: TrainState) -> bool:
        """Wait for all steps up to `step`, record the intervals among them, check the state.

        Returns:
          Whether the state may be evaluated and saved; False: handle `spike` first.

        Raises:
          FloatingPointError: training diverged.
        """
        for interval in self._sums.flush():
            self._record(interval)
        if self.spike is None and not self._run.is_finite(state):
            raise FloatingPointError(
                f"the parameters or moments of step {step:,} are not finite and are not saved, "
                f"though loss and gradient were finite; {self._advice()}"
            )
        return self.spike is None

    def memory(self) -> dict[str, Any]:
        """JSON values from which a resumed run judges steps as this one would."""
        return {"skipped": list(self._skipped), "spikes": dataclasses.asdict(self._spikes)}

    def rolled_back(self, checkpoint: int) -> None:
        """Record that training rolled back to `checkpoint` because of `spike`."""
        spike = self.spike
        self._spikes.restored.append(checkpoint)
        self._writer.write(
            spike.step,
            "rollback",
            {"loss": spike.loss, "usual_loss": spike.usual, "checkpoint": checkpoint},
        )
        self.spike = None

    def _check(self, step: int, values: dict[str, float]) -> None:
        if not values["skipped"]:
            self._skipped.clear()
            self._spikes.add(values["loss"], values["weight"])
            return
        self._skipped.append(step)
        figures = (
            f"the loss is {values['loss'] / max(values['weight'], 1.0):.4g}, the gradient's norm "
            f"{values['gradient_norm']:.4g}"
        )
        # Strings: JSON has no NaN.
        self._writer.write(step, "skipped", {"batch": step - 1, "reason": figures})
        log(f"step {step:,}  update skipped: {figures}")
        allowed = self._run.config.training.max_skipped_steps
        if len(self._skipped) >= allowed:
            raise FloatingPointError(
                f"{len(self._skipped)} updates in a row were skipped (training.max_skipped_steps="
                f"{allowed}), steps {', '.join(map(str, self._skipped))}: {figures}; "
                f"{self._advice()}"
            )

    def _record(self, interval: Interval) -> None:
        values = self._figures(interval, self._progress.interval())
        self._writer.write(interval.step, "train", values)
        self._progress.show(interval.step, values, values["seconds_per_step"])
        settings = self._run.config.training
        if interval.step % settings.log_every == 0:
            self.spike = self._spikes.end_interval(interval.step, settings)
        if self.spike is not None:
            self._progress.rewind(self._sums.discard())

    def _figures(self, interval: Interval, seconds: float) -> dict[str, float]:
        run, sums = self._run, interval.sums
        speed = sums["weight"] / seconds
        skipped = int(sums["skipped"])
        values = {"skipped": skipped}
        if skipped < interval.steps:
            own = {name: value for name, value in sums.items() if name not in STEP_SUMS}
            values |= run.objective.summarize(own)
            values["gradient_norm"] = sums["gradient_norm"] / (interval.steps - skipped)
        values |= {
            "learning_rate": sums["learning_rate"],
            f"{run.objective.unit}_per_second": speed,
            "seconds_per_step": seconds / interval.steps,
            "epoch": interval.step / run.dataset.steps_per_epoch,
        }
        if self._flops_per_unit is None:
            return values
        values["model_flops_per_second"] = speed * self._flops_per_unit
        if self._peak is not None:
            values["mfu"] = values["model_flops_per_second"] / self._peak
        return values

    def _advice(self) -> str:
        return (
            f"the last good checkpoint is in {self._run.workdir.checkpoints}; lower "
            "optimizer.learning_rate, or set optimizer.clip_norm"
        )


def mesh_peak_flops(run: Run) -> float | None:
    """Published peak of all devices of the run together, FLOP/s; None if unknown."""
    devices = run.mesh.devices
    peak = peak_flops(devices.flat[0].device_kind, run.objective.dtype)
    return None if peak is None else peak * devices.size
