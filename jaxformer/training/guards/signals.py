"""Signals that end a run: between two steps with everything saved, or immediately."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

# Launchers and terminals often deliver one request twice: to the process and to its group.
SAME_REQUEST_SECONDS = 1.0


def here_only(flag: bool, step: int) -> bool:
    """What all processes agree on if there is only one."""
    return flag


class StopSignals:
    """Context that catches SIGINT, SIGTERM and SIGUSR1.

    The first signal ends the process with `SystemExit`, except inside `noted`, where it waits until
    the loop asks. A second signal, at least a second later, ends the process whatever the main
    thread does. A thread handles it, because Python runs handlers only between calls into C, and a
    hanging device is one such call. After the context, a process that got a signal is about to end;
    a further signal that would kill it then ends it with the same status.

    Outside the main thread, where Python allows no handlers, it catches nothing.

    Args:
      any_process: `(flag, step) -> bool`: whether any process of the job set its flag; all
        processes call it at the same steps.

    Attributes:
      received: the signal that this process got, or None.
      stopped: whether the job ends because one of its processes got a signal.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, any_process: Callable[[bool, int], bool] = here_only):
        self.received: signal.Signals | None = None
        self.stopped = False
        self._any_process = any_process
        self._noting = False
        self._since = 0.0
        self._previous: dict[signal.Signals, object] = {}

    @property
    def exit_status(self) -> int:
        """130 after SIGINT, 143 after the others, 0 if none came."""
        if self.received is not None:
            return 130 if self.received == signal.SIGINT else 143
        return 143 if self.stopped else 0

    def agreed(self, step: int, *, over: bool = False) -> bool:
        """Whether the job stops after `step`: the same answer in all its processes.

        Args:
          step: updates done.
          over: whether this process wants to stop for another reason, such as its time limit.

        Returns:
          Whether to stop.
        """
        if not self._any_process(self.received is not None or over, step):
            return False
        self.stopped = self._any_process(self.received is not None, step)
        return True

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Context in which a first signal is only noted in `received`."""
        self._noting = True
        try:
            yield
        finally:
            self._noting = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            threading.Thread(
                target=leave_at_second, args=(self._reader,), name="signals", daemon=True
            ).start()
            self._previous_writer = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            for number in self.NUMBERS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        if not self._previous:
            return
        for number, handler in self._previous.items():
            if handler == signal.SIG_DFL and self.received is not None:
                handler = self._handle_late
            if handler is not None:  # None: not set from Python, so it cannot be restored
                signal.signal(number, handler)
        self._previous.clear()
        signal.set_wakeup_fd(self._previous_writer)
        os.close(self._writer)  # ends the thread

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            return  # `leave_at_second` decides
        self.received, self._since = signal.Signals(number), time.monotonic()
        if not self._noting:
            raise SystemExit(self.exit_status)

    def _handle_late(self, number: int, frame: FrameType | None) -> None:
        if time.monotonic() - self._since >= SAME_REQUEST_SECONDS:
            os._exit(self.exit_status)


def leave_at_second(reader: int) -> None:
    """Read signal numbers as they arrive; the second request ends the process."""
    first, since = 0, 0.0
    with open(reader, "rb", buffering=0) as numbers:
        while number := numbers.read(1):
            if number[0] not in StopSignals.NUMBERS:
                continue
            if not first:
                first, since = number[0], time.monotonic()
                name = signal.Signals(first).name
                say(f"{name} received; a second signal exits immediately\n")
                continue
            if time.monotonic() - since >= SAME_REQUEST_SECONDS:
                say("second signal: exiting immediately\n")
                os._exit(130 if first == signal.SIGINT else 143)


def say(text: str) -> None:
    """Write to standard error without Python's locks; errors are ignored."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
