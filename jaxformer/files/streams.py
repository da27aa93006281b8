"""Standard output and standard error, and what happens when they cannot be written."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from jaxformer.errors import InputError


class GuardedStream:
    """A text stream that passes write errors to a function, and otherwise behaves as the stream.

    Args:
      stream: the stream; None: it was closed before the program began.
      failed: called with the error; what it raises is raised by the write.
    """

    def __init__(self, stream: TextIO | None, failed: Callable[[Exception], None]):
        self.stream, self.failed = stream, failed

    def write(self, text: str) -> int:
        self._try(lambda stream: stream.write(text))
        return len(text)

    def writelines(self, lines) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._try(lambda stream: stream.flush())

    def _try(self, act: Callable[[TextIO], Any]) -> None:
        try:
            if self.stream is None:
                raise OSError("it is closed")
            act(self.stream)
        except (OSError, ValueError) as error:  # ValueError: closed, or not encodable
            self.failed(error)

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()

    def reconfigure(self, **options) -> None:
        if hasattr(self.stream, "reconfigure"):
            self.stream.reconfigure(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def log_streams() -> Iterator[None]:
    """Treat standard output and error as a log, whose write errors end nothing.

    Such errors are a full disk, a closed pipe, a closed terminal, or a character that the encoding
    lacks. The first one on standard output is reported on standard error, and work continues.
    """
    lost = False

    def tell(error: Exception) -> None:
        nonlocal lost
        if not lost:
            lost = True
            print(
                f"standard output cannot be written ({_reason(error)}); the log is incomplete from "
                "here on, everything else continues",
                file=sys.stderr,
                flush=True,
            )

    with _replaced("stderr", lambda error: None), _replaced("stdout", tell):
        yield


@contextlib.contextmanager
def result_streams() -> Iterator[None]:
    """Treat standard output as a command's result, whose write errors end the command.

    They raise `InputError`, or `BrokenPipeError` if the reader closed the pipe. Standard error is a
    log, as in `log_streams`.
    """

    def refuse(error: Exception) -> None:
        if isinstance(error, BrokenPipeError):
            raise error
        raise InputError(f"standard output cannot be written: {_reason(error)}") from error

    with _replaced("stderr", lambda error: None), _replaced("stdout", refuse):
        yield


@contextlib.contextmanager
def _replaced(name: str, failed: Callable[[Exception], None]) -> Iterator[None]:
    stream = getattr(sys, name)
    if isinstance(stream, GuardedStream):  # nested, as in a command that trains
        yield
        return
    guarded = GuardedStream(stream, failed)
    guarded.reconfigure(errors="backslashreplace")
    setattr(sys, name, guarded)
    try:
        yield
    finally:
        setattr(sys, name, stream)
        _forget_unwritten(stream)


def _forget_unwritten(stream: TextIO | None) -> None:
    """Discard unwritten text, so that Python's flush on exit does not fail again."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
            stream.flush()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
