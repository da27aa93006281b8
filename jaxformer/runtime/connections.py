"""Connections between the processes of a job, which carry messages line by line."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import threading
import time
from typing import Any

CONNECT_SECONDS = 60.0
RECEIVE_BYTES = 65536


class Line:
    """A connection that carries JSON objects, one per line.

    Attributes:
      index, name: of the process at the other end, once it has named itself.
      step: updates it has reported.
      silent: seconds without a message, counted by the owner.
      left: that process has announced a regular exit.
    """

    def __init__(self, connection: socket.socket, index: int = -1, name: str = ""):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(CONNECT_SECONDS)
        self.connection, self.index, self.name = connection, index, name
        self.step, self.silent, self.left = 0, 0.0, False
        self._rest = b""
        self._sending = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; failures are ignored."""
        try:
            with self._sending:
                self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the reader of this connection notices that it is closed

    def receive_first(self) -> dict[str, Any]:
        """Wait for one message; empty if it is not one of ours."""
        text = b""
        try:
            while not text.endswith(b"\n") and len(text) < RECEIVE_BYTES:
                byte = self.connection.recv(1)
                if not byte:
                    return {}
                text += byte
            message = json.loads(text)
        except (OSError, ValueError):
            return {}
        return message if isinstance(message, dict) else {}

    def receive_hello(self) -> dict[str, Any] | None:
        """The first message received: None while incomplete, empty if it is not one of ours."""
        try:
            messages = self.receive()
        except (ValueError, RecursionError):
            return {}
        if messages == [] and len(self._rest) < RECEIVE_BYTES:
            return None
        return messages[0] if messages and isinstance(messages[0], dict) else {}

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages received; None: the connection is closed."""
        try:
            data = self.connection.recv(RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def own_name(index: int) -> str:
    """`process 1 (host, pid 4711)`."""
    return f"process {index} ({socket.gethostname()}, pid {os.getpid()})"


def open_server(host: str) -> socket.socket:
    """Listen on a free port; only local connections are accepted if `host` is this machine."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return (
            socket.create_server((host, 0))
            if ":" not in host
            else socket.create_server((host, 0), family=socket.AF_INET6)
        )
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def welcome(server: socket.socket, host: str, count: int, token: str) -> list[Line]:
    """Wait for the connections of processes 1 to `count - 1`, and for their names.

    All are read concurrently, so a stranger without the token delays nobody.

    Args:
      server: where they connect.
      host: of the server, for the message.
      count: number of processes, including this one.
      token: secret that each of them knows.

    Returns:
      The connections, by process.

    Raises:
      TimeoutError: some did not connect within `CONNECT_SECONDS`; names them.
    """
    lines: dict[int, Line] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    server.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while missing := sorted(set(range(1, count)) - lines.keys()):
            left = deadline - time.monotonic()
            if left <= 0.0:
                raise TimeoutError(
                    f"process {', '.join(map(str, missing))} did not connect to process 0 on "
                    f"{host} within {CONNECT_SECONDS:g} s"
                )
            for key, _ in selector.select(left):
                if key.fileobj is server:
                    with contextlib.suppress(ConnectionError, BlockingIOError):  # gone again
                        line = Line(server.accept()[0])
                        selector.register(line.connection, selectors.EVENT_READ, line)
                    continue
                line, hello = key.data, key.data.receive_hello()
                if hello is None:
                    continue
                selector.unregister(line.connection)
                shown = str(hello.get("token")).encode(errors="replace")
                if secrets.compare_digest(shown, token.encode()):
                    line.index, line.name = hello["index"], hello["name"]
                    lines[line.index] = line
                else:
                    line.connection.close()
        for key in list(selector.get_map().values()):
            if key.fileobj is not server:
                key.data.connection.close()
    return [lines[index] for index in sorted(lines)]
