"""A thread that ends a stalled run and prints the stacks of its threads."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

EXIT_STATUS = 70
STEPS_KEPT = 101  # newest steps, for the median
MEDIANS = 10.0  # median steps that one step may take
PAUSE_FLOORS = 12.0  # floors that compiling, evaluating or saving may take without a sign of life
REPORT_SECONDS = 10.0  # to write the stacks, since the disk may be what hangs


class Watchdog:
    """Ends the process with status 70 when the run stalls because a device or a peer hangs.

    Between steps it waits `max(10 * median step, floor)` seconds. Anything longer than a step is
    announced with `pause`, where it waits `12 * floor` seconds for the next sign of life. It starts
    watching at the first `pause` or `start`, since preparing a corpus may take any time.

    It counts its own ticks, so time during which the whole process was stopped (Ctrl-Z, a sleeping
    machine) does not count. It cannot see a hang inside a library that holds Python's interpreter
    lock, because that stops this thread too.

    Args:
      stacks_file: receives the stacks of all threads, which also go to stderr.
      floor: seconds; 0: disabled.
    """

    def __init__(self, stacks_file: Path, *, floor: float):
        self._stacks_file, self._floor = stacks_file, floor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._signs = 0  # of life
        self._station: str | None = None  # None: not watched
        self._paused = False
        self._step = 0
        self._last = time.monotonic()
        self._seconds: deque[float] = deque(maxlen=STEPS_KEPT)
        self._shapes: set = set()

    def __enter__(self) -> Watchdog:
        if self._floor > 0:
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def start(self, step: int) -> None:
        """Start watching; `step` updates are done."""
        self._last, self._step, self._station = time.monotonic(), step, "training"
        self.alive()

    def step_done(self, step: int) -> None:
        """One more loop iteration: `step` updates are dispatched, all but the newest few done."""
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last, self._step = now, step
        self.alive()

    def alive(self) -> None:
        """A sign of life inside a pause, such as a finished evaluation batch."""
        self._signs += 1

    @contextlib.contextmanager
    def pause(self, station: str) -> Iterator[None]:
        """Context with the longer limit; `station` names the activity in the message."""
        before = self._station, self._paused
        self._station, self._paused = station, True
        self.alive()
        try:
            yield
        finally:
            self._station, self._paused = before
            self._last = time.monotonic()
            self.alive()

    def dispatch(self, batch: Mapping) -> contextlib.AbstractContextManager:
        """Context for the call of a step: a pause if the shapes are new, since it compiles."""
        shapes = tuple(sorted((name, array.shape) for name, array in batch.items()))
        if shapes in self._shapes:
            return contextlib.nullcontext()
        self._shapes.add(shapes)
        return self.pause("compiling the step for a new batch shape")

    def limit(self) -> float:
        """Current limit: seconds without a sign of life after which the process is ended."""
        if self._paused:
            return PAUSE_FLOORS * self._floor
        seconds = list(self._seconds)
        return max(self._floor, MEDIANS * statistics.median(seconds) if seconds else 0.0)

    def _watch(self) -> None:
        tick = min(1.0, self._floor / 10)
        seen, age = self._signs, 0.0
        while not self._ended.wait(tick):
            signs, watched = self._signs, self._station is not None
            age = age + tick if watched and signs == seen else 0.0
            seen = signs
            if age > self.limit():
                self._end(age)

    def _end(self, age: float) -> None:
        message = (
            f"error: no sign of life for {age:.1f} s (limit {self.limit():.1f} s) after step "
            f"{self._step:,}, while {self._station}; process {os.getpid()} on "
            f"{socket.gethostname()} ends, its stacks are in {self._stacks_file}; run the same "
            "command to resume from the newest checkpoint\n"
        )
        # In a thread, because a hanging disk or pipe would block it forever.
        writer = threading.Thread(target=self._report, args=(message,), daemon=True)
        writer.start()
        writer.join(REPORT_SECONDS)
        os._exit(EXIT_STATUS)

    def _report(self, message: str) -> None:
        with contextlib.suppress(OSError):  # stderr may be closed
            os.write(2, message.encode())
        faulthandler.dump_traceback(2, all_threads=True)
        with contextlib.suppress(OSError), self._stacks_file.open("ab") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {message}".encode())
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
