"""What training reports: metric sums, metrics.jsonl, TensorBoard events and the progress bar."""

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

from jaxformer.runtime.distributed import is_first_process
from jaxformer.storage.metrics_file import MetricsLine, read_lines
from jaxformer.storage.workdir import write_atomically

STEPS_IN_FLIGHT = 2  # dispatched steps that the devices may not have done
OF_EVERY_STEP = ("skipped", "learning_rate")  # figures that a skipped update has too
HELD_OUT = ("test", "compositional")  # splits measured once a run has ended
RESUME = "resume"  # the split of what differs from the checkpoint that a start goes on from


def log(message: str) -> None:
    """Print a message without tearing the progress bar; of several processes the first one does."""
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
      sums: of the metric sums of these steps, in float64; of skipped ones only `skipped` counts.
    """

    step: int
    steps: int
    sums: dict[str, float]


class IntervalSums:
    """Adds up the metric sums of steps; each is read `STEPS_IN_FLIGHT` steps later.

    The copy of a step's sums to the host is asked for when the step is dispatched, so that it is
    made as soon as the step ends, while the devices work on. Waiting for it bounds how far the
    host runs ahead, and is the only wait. Float64 on the host keeps token counts exact.

    Args:
      ends: whether an interval ends at a step.
      each: called with the step and the figures of each step as they are read.
    """

    def __init__(self, ends: Callable[[int], bool], each: Callable[[int, dict[str, float]], None]):
        self._ends, self._each = ends, each
        self._in_flight: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self._steps, self._totals = 0, {}

    def add(self, step: int, sums: dict[str, jax.Array]) -> Interval | None:
        """Take in the sums of the dispatched update number `step`.

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
        """Forget the dispatched steps that are not read, to do them again; returns how many."""
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
    """Appends to metrics.jsonl and writes TensorBoard events; in the first process alone.

    On a full disk training goes on: lines that cannot be written are kept until they can, and what
    is left of them in the end is printed.

    Args:
      metrics_file: one JSON object a line, with `step` and `split`.
      first_step: the step this start begins at; what an earlier start wrote after its checkpoint
        is removed, because it is written again: later steps, held-out splits, the changes at this
        step, a line cut short. Damaged lines are set aside.
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
        if self._file is None:
            return
        self._unwritten += json.dumps({"step": step, "split": split, **values}).encode() + b"\n"
        self._append()
        # The library takes long to load, so that is done while the devices work on a step.
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
                log(f"{self._path} cannot be written ({error.strerror}); its lines are kept")
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
    """Keep damaged lines of metrics.jsonl in a file beside it, and say which they are."""
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
    """The TensorBoard writer; events of `first_step` and later that are there are made void."""
    from tensorboardX import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first_step)


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
            disable=not (sys.stderr.isatty() and is_first_process()),
        )
        self._clock = time.monotonic()
        self._seconds = 0.0

    def advance(self) -> None:
        self._bar.update(1)

    def rewind(self, steps: int) -> None:
        """Take back steps that are done again."""
        self._bar.update(-steps)

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
        loss = f"loss {values['loss']:.3f}" if "loss" in values else "all updates skipped"
        figures = (
            f"{loss}  lr {values['learning_rate']:.2e}  "
            f"{values['target_tokens_per_second']:,.0f} target tok/s"
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
