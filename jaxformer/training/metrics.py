"""Reporting during training: metric sums, metrics.jsonl, TensorBoard events, the progress bar."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxformer.evaluation.evaluator import HELD_OUT
from jaxformer.runtime.distributed import is_first_process
from jaxformer.storage.metrics_file import MetricsLine, read_lines
from jaxformer.storage.workdir import write_atomically

STEPS_IN_FLIGHT = 2  # dispatched steps that the devices may not have finished
OF_EVERY_STEP = ("skipped", "learning_rate")  # metrics that skipped updates have too
RESUME = "resume"  # split of the rows that list what changed since the restored checkpoint


def log(message: str) -> None:
    """Print a message without breaking the progress bar; only the first process prints."""
    if not is_first_process():
        return
    from tqdm import tqdm

    tqdm.write(message, file=sys.stdout)
    sys.stdout.flush()


class Interval(NamedTuple):
    """Totals of the steps between two log lines.

    Attributes:
      step: updates done at its end.
      steps: updates in it.
      sums: totals of the steps' metric sums, in float64; skipped steps add only `OF_EVERY_STEP`.
    """

    step: int
    steps: int
    sums: dict[str, float]


class IntervalSums:
    """Adds up the metric sums of steps; each is read `STEPS_IN_FLIGHT` steps later.

    Each step's sums are copied to the host asynchronously, as soon as the step ends. Waiting for
    the copy bounds how far the host runs ahead, and is the only wait. Float64 on the host keeps
    token counts exact.

    Args:
      ends: whether an interval ends at a step.
      each: called with each step and its sums as they are read.
    """

    def __init__(self, ends: Callable[[int], bool], each: Callable[[int, dict[str, float]], None]):
        self._ends, self._each = ends, each
        self._in_flight: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self._steps, self._totals = 0, {}

    def add(self, step: int, sums: dict[str, jax.Array]) -> Interval | None:
        """Add the sums of the dispatched update number `step`.

        Returns:
          The interval that ended `STEPS_IN_FLIGHT` steps ago, if one did.
        """
        for value in sums.values():
            value.copy_to_host_async()
        self._in_flight.append((step, sums))
        return self._read() if len(self._in_flight) > STEPS_IN_FLIGHT else None

    def flush(self) -> Iterator[Interval]:
        """Wait for all dispatched steps; yields the intervals as they end."""
        while self._in_flight:
            interval = self._read()
            if interval is not None:
                yield interval

    def discard(self) -> int:
        """Drop the dispatched steps not read yet, to be repeated; returns how many."""
        count = len(self._in_flight)
        self._in_flight.clear()
        return count

    def _read(self) -> Interval | None:
        step, sums = self._in_flight.popleft()
        values = {name: float(value) for name, value in jax.device_get(sums).items()}
        self._each(step, values)
        for name, value in values.items():
            counts = not values["skipped"] or name in OF_EVERY_STEP
            self._totals[name] = self._totals.get(name, 0.0) + (value if counts else 0.0)
        self._steps += 1
        if not self._ends(step):
            return None
        interval = Interval(step, self._steps, self._totals)
        self._steps, self._totals = 0, {}
        return interval


class MetricsWriter:
    """Appends to metrics.jsonl and writes TensorBoard events, only in the first process.

    On a full disk training continues: lines that cannot be written are buffered and retried, and
    those left at the end are printed.

    Args:
      metrics_file: one JSON object per line, with `step` and `split`.
      first_step: at which this start begins. Rows that an earlier start wrote after its checkpoint
        are removed, since they are written again: later steps, held-out splits, the changes at this
        step, a truncated line. Damaged lines are set aside.
    """

    def __init__(self, metrics_file: Path, first_step: int):
        self._file = self._events = None
        self._path, self._unwritten, self._reported = metrics_file, b"", False
        if not is_first_process():
            return
        if metrics_file.is_file():
            lines = read_lines(metrics_file.read_bytes())
            set_aside(metrics_file, [line for line in lines if line.row is None])
            kept = [x.content for x in lines if x.row and self._is_before(x.row, first_step)]
            write_atomically(metrics_file, "".join(f"{line.decode()}\n" for line in kept))
        self._file = metrics_file.open("ab", buffering=0)
        self._open_events = functools.partial(
            open_events, metrics_file.parent / "tensorboard", first_step + 1
        )

    @staticmethod
    def _is_before(row: dict[str, Any], first_step: int) -> bool:
        in_loop = row["split"] not in (*HELD_OUT, RESUME)
        return row["step"] < first_step or (in_loop and row["step"] == first_step)

    def write(self, step: int, split: str, values: dict[str, Any]) -> None:
        """Append a row.

        Args:
          step: updates done.
          split: split of the values, such as `train`.
          values: JSON values by name; numbers go to TensorBoard too.
        """
        if self._file is None:
            return
        self._unwritten += json.dumps({"step": step, "split": split, **values}).encode() + b"\n"
        self._append()
        # tensorboardX loads slowly, so load it here, while the devices run a step.
        self._events = self._events or self._open_events()
        for name, value in values.items():
            if isinstance(value, int | float):
                self._events.add_scalar(f"{split}/{name}", value, step)

    def _append(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
            self._reported = False
        except OSError as error:
            if not self._reported:
                log(f"{self._path} cannot be written ({error.strerror}); its lines are buffered")
            self._reported = True

    def close(self) -> None:
        if self._file is not None:
            self._append()
            self._file.close()
            if self._unwritten:
                log(f"NOT written to {self._path}:\n{self._unwritten.decode()}")
        if self._events is not None:
            self._events.close()


def set_aside(metrics_file: Path, damaged: list[MetricsLine]) -> None:
    """Move damaged lines of metrics.jsonl to a file next to it, and log their numbers."""
    if not damaged:
        return
    beside = metrics_file.with_name(f"{metrics_file.name}.damaged")
    with beside.open("ab") as file:
        file.writelines(line.content + b"\n" for line in damaged)
    numbers = ", ".join(str(line.number) for line in damaged[:10])
    more = f" and {len(damaged) - 10} more" if len(damaged) > 10 else ""
    lines = "line" if len(damaged) == 1 else "lines"
    log(f"{metrics_file}: damaged {lines} {numbers}{more} set aside in {beside}")


def open_events(folder: Path, first_step: int):
    """The TensorBoard writer; it voids existing events of `first_step` and later."""
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first_step)


class Progress:
    """A progress bar on a terminal, a line every `log_every` steps elsewhere.

    Args:
      first_step: updates done before this start.
      num_steps: updates of the run.
      unit: what to count per second; the metrics contain `<unit>_per_second`.
    """

    def __init__(self, first_step: int, num_steps: int, unit: str = "target_tokens"):
        from tqdm import tqdm

        self._num_steps, self._unit = num_steps, unit
        self._bar = tqdm(
            total=num_steps,
            initial=first_step,
            desc="training",
            unit="step",
            dynamic_ncols=True,
            disable=not (sys.stderr.isatty() and is_first_process()),
        )
        self._clock = time.monotonic()
        self._seconds = 0.0

    def advance(self) -> None:
        self._bar.update(1)

    def rewind(self, steps: int) -> None:
        """Take back steps that will be repeated."""
        self._bar.update(-steps)

    def pause(self) -> None:
        """Stop the training clock while evaluating or saving."""
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
        """Print the metrics of the last interval.

        Args:
          step: updates done.
          values: metrics by name.
          seconds_per_step: to estimate the remaining time.
        """
        left = format_seconds((self._num_steps - step) * seconds_per_step)
        loss = f"loss {values['loss']:.3f}" if "loss" in values else "all updates skipped"
        figures = (
            f"{loss}  lr {values['learning_rate']:.2e}  "
            f"{values[f'{self._unit}_per_second']:,.0f} {self._unit.replace('_', ' ')}/s"
        )
        if "mfu" in values:
            figures += f"  MFU {values['mfu']:.1%}"
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
