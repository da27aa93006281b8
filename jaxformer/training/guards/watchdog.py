"""A thread that ends a run which stands still, and shows where each of its threads stood."""

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
STEPS_KEPT = 101  # newest steps, of which the median is taken
MEDIANS = 10.0  # steps that one step may last
PAUSE_FLOORS = 12.0  # floors that compiling, evaluating or saving may last without a sign of life
REPORT_SECONDS = 10.0  # for the stacks to be written: the disk may be what hangs


class Watchdog:
    """Ends the process with status 70 when the run stands still; a device or a peer may hang.

    Between steps it waits `max(10 * median step, floor)` seconds. Whatever takes longer than a step
    is announced with `pause`, and there it waits `12 * floor` seconds for the next sign of life.
    Before the first `pause` or `start` it does not watch: corpora take as long as they take.

    It counts its own ticks, so that the time in which the whole process was stopped (Ctrl-Z, a
    machine that slept) is not held against the run. A hang inside a library that keeps Python's
    interpreter lock stops this thread too and is not seen.

    Args:
      stacks_file: gets the stacks of all threads, which also go to stderr.
      floor: seconds; 0: it does nothing.
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
        """Watch from now on; `step` updates are done."""
        self._last, self._step, self._station = time.monotonic(), step, "training"
        self.alive()

    def step_done(self, step: int) -> None:
        """The loop has come round: `step` updates are dispatched, all but the newest few done."""
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last, self._step = now, step
        self.alive()

    def alive(self) -> None:
        """A sign of life inside a pause, from each batch of an evaluation say."""
        self._signs += 1

    @contextlib.contextmanager
    def pause(self, station: str) -> Iterator[None]:
        """Watch with the longer limit: `station` says what is done, for the message."""
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
        """Around the call of a step: a pause if no batch had these shapes, for it is compiled."""
        shapes = tuple(sorted((name, array.shape) for name, array in batch.items()))
        if shapes in self._shapes:
            return contextlib.nullcontext()
        self._shapes.add(shapes)
        return self.pause("compiling the step for a new shape of batches")

    def limit(self) -> float:
        """Seconds without a sign of life after which the process is ended, as things stand."""
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
            f"{socket.gethostname()} ends, its stacks are in {self._stacks_file}; the same command "
            "goes on from the newest checkpoint\n"
        )
        # A thread of its own: where a disk or the reader of a pipe hangs, it would wait for ever.
        writer = threading.Thread(target=self._report, args=(message,), daemon=True)
        writer.start()
        writer.join(REPORT_SECONDS)
        os._exit(EXIT_STATUS)

    def _report(self, message: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads stderr any more
            os.write(2, message.encode())
        faulthandler.dump_traceback(2, all_threads=True)
        with contextlib.suppress(OSError), self._stacks_file.open("ab") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {message}".encode())
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
