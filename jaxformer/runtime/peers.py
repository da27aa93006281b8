"""The processes of a job monitor each other, and agree on when to stop.

Every process holds a connection to process 0 and sends one line per second. A process that dies
closes its connection; one that is stopped or disconnected falls silent. In both cases process 0
names it to all others, and they end, since a collective would wait for it forever. JAX's own
heartbeats end a process by SIGABRT, name its number at best, and take 100 s to notice a dead peer.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxformer.runtime.connections import CONNECT_SECONDS, Line, open_server, own_name, welcome

LOST_STATUS = 71  # a peer was lost
BEAT_SECONDS = 1.0


class Peers:
    """The other processes of a job, seen from one of them; made by `connect` or `listen`.

    Args:
      index: number of this process.
      count: number of processes.
      timeout: seconds of silence after which a process counts as lost.
      end: called with a message and an exit status when this process must end; does not return.
    """

    def __init__(
        self,
        index: int,
        count: int,
        *,
        timeout: float,
        end: Callable[[str, int], None] | None = None,
    ):
        self.index, self.count, self._timeout = index, count, timeout
        self._end = end or end_process
        self._lines: dict[int, Line] = {}  # by process; except in process 0, only that of 0
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._changed = threading.Condition()
        # Agreement: calls of `any_process` here, and whether and at which call all stop.
        self._calls, self._raised, self._asked, self._stop_at = 0, False, False, 0
        self._step = 0
        self._gathered, self._results = 0, {}
        # In process 0 only: the answers of all, by question.
        self._counts: dict[int, int] = {}
        self._values: dict[int, dict[int, Any]] = {}

    # --- connecting -----------------------------------------------------------------------------

    @classmethod
    def listen(cls, count: int, host: str, publish: Callable[[str], None], **settings) -> Peers:
        """As process 0: publish the address and wait until the others have connected.

        Args:
          count: number of processes.
          host: name or address of this machine, as the others see it.
          publish: called with the address, to be passed to `connect`.
          **settings: `timeout` and `end` of `Peers`.

        Returns:
          The connected peers, watched by a thread.

        Raises:
          TimeoutError: some did not connect; names them.
        """
        peers, token = cls(0, count, **settings), secrets.token_hex(16)
        with open_server(host) as server:
            publish(json.dumps({"host": host, "port": server.getsockname()[1], "token": token}))
            for line in welcome(server, host, count, token):
                peers._add(line)
        peers._broadcast({"name": own_name(0)})
        peers._start()
        return peers

    @classmethod
    def connect(cls, index: int, count: int, address: str, **settings) -> Peers:
        """As another process: connect to process 0.

        Args:
          index: number of this process, at least 1.
          count: number of processes.
          address: what process 0 published.
          **settings: `timeout` and `end` of `Peers`.

        Returns:
          The connected peers, watched by a thread.

        Raises:
          OSError: process 0 cannot be reached.
        """
        peers, where = cls(index, count, **settings), json.loads(address)
        connection = socket.create_connection((where["host"], where["port"]), CONNECT_SECONDS)
        line = Line(connection, 0)
        line.send({"token": where["token"], "index": index, "name": own_name(index)})
        line.name = line.receive_first().get("name", f"process 0 ({where['host']})")
        peers._add(line)
        peers._start()
        return peers

    def _add(self, line: Line) -> None:
        self._lines[line.index] = line
        self._selector.register(line.connection, selectors.EVENT_READ, line)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    # --- agreeing, from the main thread ---------------------------------------------------------

    def any_process(self, flag: bool, step: int) -> bool:
        """Whether any process set its flag: the same answer at the same call in all processes.

        All processes make the same calls. A call waits for nobody and takes microseconds; a flag
        takes effect a few calls later, when the threads of all processes have agreed on which.
        After that, with the run about to end, each call waits for all processes.

        Args:
          flag: of this process.
          step: updates done; the others report it if this process is lost.

        Returns:
          Whether to stop.
        """
        with self._changed:
            self._step = step
            while self._asked and not self._stop_at:
                self._changed.wait()
            if not self._stop_at or self._calls < self._stop_at:
                self._calls += 1
                raised, self._raised = self._raised, self._raised or flag
                stop = 0 < self._stop_at <= self._calls
                if flag and not raised:
                    self._tell_first({"flag": True})
                return stop
        return any(self.gather(flag))

    def gather(self, value: Any) -> list[Any]:
        """Wait for the values (JSON) that all processes pass to the same call; by process."""
        with self._changed:
            self._gathered += 1
            number = self._gathered
            self._tell_first({"gather": number, "value": value})
            while number not in self._results:
                self._changed.wait()
            return self._results.pop(number)

    def barrier(self) -> None:
        """Wait until all processes have called it."""
        self.gather(None)

    def leave(self) -> None:
        """Leave together with the others; from then on they may end."""
        self.barrier()
        self._closing = True
        for line in list(self._lines.values()):  # also to those that left: they wait for it
            line.send({"left": True})

    def abandon(self, status: int, reason: str) -> None:
        """Tell the others that this process ends, so that they end with `status` too."""
        self._closing = True
        message = f"error: {own_name(self.index)} ended: {reason}"
        self._broadcast({"lost": message, "status": status, "by": self.index})

    # --- watching, in the thread ----------------------------------------------------------------

    def _watch(self) -> None:
        last = beaten = time.monotonic()
        while not (self._closing and all(line.left for line in self._lines.values())):
            for key, _ in self._selector.select(BEAT_SECONDS / 4):
                self._take(key.data)
            now = time.monotonic()
            # If this process itself was stopped, its peers were not silent.
            passed, last = min(now - last, 2 * BEAT_SECONDS), now
            for line in [line for line in self._lines.values() if not line.left]:
                line.silent += passed
                if line.silent > self._timeout and not self._closing:
                    why = (
                        f"silent for {self._timeout:g} s: it is stopped or hangs, or its machine "
                        "or the network is down"
                    )
                    self._lose(line, why)
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                self._broadcast({"step": self._step})

    def _take(self, line: Line) -> None:
        messages = line.receive()
        line.silent = 0.0
        if messages is None:
            self._selector.unregister(line.connection)
            if not (line.left or self._closing):
                self._lose(line, "its connection is closed: it died")
            line.left = True
            return
        for message in messages:
            if "left" in message:
                line.left = True
            elif message.get("by") == self.index:
                continue  # its own last words
            elif "lost" in message:
                self._closing = True
                if self.index == 0:
                    self._broadcast(message)
                self._end(message["lost"], message["status"])
            elif "step" in message:
                line.step = message["step"]
            else:
                self._answer(line.index, message)

    def _lose(self, line: Line, why: str) -> None:
        self._closing = True
        message = (
            f"error: {line.name} is lost, last heard at step {line.step:,} ({why}); the others end "
            f"with status {LOST_STATUS}; run the same command to resume from the newest checkpoint"
        )
        if self.index == 0:
            self._broadcast({"lost": message, "status": LOST_STATUS})
        self._end(message, LOST_STATUS)

    def _broadcast(self, message: dict[str, Any]) -> None:
        for line in list(self._lines.values()):
            if not line.left:
                line.send(message)

    def _tell_first(self, message: dict[str, Any]) -> None:
        if self.index:
            self._lines[0].send(message)
        else:
            self._answer(0, message)

    def _answer(self, sender: int, message: dict[str, Any]) -> None:
        """Handle a message about an agreement; process 0 collects answers and sends the result."""
        with self._changed:
            if "ask" in message:
                self._asked = True
                self._tell_first({"calls": self._calls})
            elif "stop_at" in message:
                self._stop_at = message["stop_at"]
            elif "result" in message:
                self._results[message["result"]] = message["values"]
            elif "flag" in message and not self._asked:
                self._asked = True
                self._counts[0] = self._calls
                self._broadcast({"ask": True})
            elif "calls" in message:
                self._counts[sender] = message["calls"]
                if len(self._counts) == self.count:
                    self._stop_at = max(self._counts.values()) + 1
                    self._broadcast({"stop_at": self._stop_at})
            elif "gather" in message:
                number = message["gather"]
                values = self._values.setdefault(number, {})
                values[sender] = message["value"]
                if len(values) == self.count:
                    del self._values[number]
                    self._results[number] = [values[i] for i in range(self.count)]
                    self._broadcast({"result": number, "values": self._results[number]})
            self._changed.notify_all()


def end_process(message: str, status: int) -> None:
    """Print a message and end this process, even if its other threads are blocked."""
    os.write(2, (message + "\n").encode())
    os._exit(status)


def delay_abort() -> bool:
    """Delay SIGABRT by six seconds, so that the watch can report what happened.

    When process 0 dies, JAX's client immediately aborts the process from its own thread, with a
    different message. The handler is the C library's `sleep`, which takes the signal's number, 6,
    as its seconds: no Python code runs in it, and the process is aborted afterwards.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = (
        (ctypes.c_int, ctypes.c_void_p),
        ctypes.c_void_p,
    )
    library.signal(signal.SIGABRT, ctypes.cast(library.sleep, ctypes.c_void_p))
    return True
