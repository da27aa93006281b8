"""Signals that end a run between two steps, with everything saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopSignals:
    """Catches SIGINT, SIGTERM and SIGUSR1 while it is entered; a second signal ends at once.

    Outside the main thread, where Python allows no handlers, it catches nothing.

    Attributes:
      received: the signal that asked to stop, or None.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self):
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    @property
    def exit_status(self) -> int:
        """130 after SIGINT, 143 after the others, 0 if none came."""
        if self.received is None:
            return 0
        return 130 if self.received == signal.SIGINT else 143

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in self.NUMBERS:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise SystemExit(self.exit_status)
        self.received = signal.Signals(number)
