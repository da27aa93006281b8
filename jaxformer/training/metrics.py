"""What training reports: metric sums, metrics.jsonl, TensorBoard events and the progress bar."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer.storage.workdir import write_atomically


def log(message: str) -> None:
    """Print a message without tearing the progress bar."""
    from tqdm import tqdm

    tqdm.write(message, file=sys.stdout)
    sys.stdout.flush()


class MetricSums:
    """Sums metric sums of steps; they stay on the device until `fetch`."""

    def __init__(self):
        self._pending: list[dict[str, jax.Array]] = []

    def add(self, sums: dict[str, jax.Array]) -> None:
        self._pending.append(sums)
        if len(self._pending) > 2:  # bounds how far the host runs ahead of the devices
            jax.block_until_ready(self._pending[-3])

    def fetch(self) -> dict[str, float]:
        """Totals of everything added since the last fetch, in float64."""
        fetched = jax.device_get(self._pending)
        self._pending = []
        names = fetched[0] if fetched else ()
        return {name: float(np.sum([s[name] for s in fetched], dtype=np.float64)) for name in names}


class MetricsWriter:
    """Appends to metrics.jsonl and writes TensorBoard events.

    Args:
      metrics_file: one JSON object a line, with `step` and `split`.
      first_step: the step this start begins at; what an earlier start wrote after its checkpoint
        is removed, because it is written again: later steps, held-out splits, a line cut short.
    """

    def __init__(self, metrics_file: Path, first_step: int):
        from tensorboardX import SummaryWriter

        if metrics_file.is_file():
            complete = metrics_file.read_text("utf-8").split("\n")[:-1]
            kept = [line for line in complete if self._is_before(json.loads(line), first_step)]
            write_atomically(metrics_file, "".join(line + "\n" for line in kept))
        self._file = metrics_file.open("a", encoding="utf-8")
        self._events = SummaryWriter(
            str(metrics_file.parent / "tensorboard"), purge_step=first_step + 1
        )

    @staticmethod
    def _is_before(row: dict[str, Any], first_step: int) -> bool:
        in_loop = row["split"] in ("train", "validation")
        return row["step"] < first_step or (in_loop and row["step"] == first_step)

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        self._file.write(json.dumps({"step": step, "split": split, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._events.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        self._file.close()
        self._events.close()


class Progress:
    """A bar on a terminal, a line every `log_every` steps elsewhere."""

    def __init__(self, first_step: int, num_steps: int):
        from tqdm import tqdm

        self._num_steps = num_steps
        self._bar = tqdm(
            total=num_steps,
            initial=first_step,
            desc="training",
            unit="step",
            dynamic_ncols=True,
            disable=not sys.stderr.isatty(),
        )
        self._clock = time.monotonic()
        self._seconds = 0.0
        self._steps = 0

    def advance(self) -> None:
        self._bar.update(1)

    def pause(self) -> None:
        """Stop the clock of the training speed: evaluating or saving."""
        self._seconds += time.monotonic() - self._clock

    def unpause(self) -> None:
        self._clock = time.monotonic()

    def interval(self) -> float:
        """Seconds of training since the last call."""
        self.pause()
        seconds, self._seconds = self._seconds, 0.0
        self.unpause()
        return max(seconds, 1e-9)

    def show(self, step: int, values: dict[str, float], seconds_per_step: float) -> None:
        """Print the figures of the last interval."""
        left = format_seconds((self._num_steps - step) * seconds_per_step)
        figures = (
            f"loss {values['loss']:.3f}  lr {values['learning_rate']:.2e}  "
            f"{values['target_tokens_per_second']:,.0f} target tok/s"
        )
        if self._bar.disable:
            log(f"step {step:,}/{self._num_steps:,}  {figures}  {left} left")
        else:
            self._bar.set_postfix_str(figures)

    def close(self) -> None:
        self._bar.close()


def format_seconds(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
