"""Standard output and standard error: what happens when they cannot be written."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from jaxformer.errors import InputError


class GuardedStream:
    """A text stream whose failures to write go to a function; all else is the stream's own.

    Args:
      stream: None: it was closed before the program began.
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
        except (OSError, ValueError) as error:  # ValueError: closed, or not to be encoded
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
    """Inside, standard output and error are a log, and a log that cannot be written ends nothing.

    A full disk, a closed pipe, a terminal that went away, an encoding without a character: the
    first failure of standard output is told on standard error, and work goes on.
    """
    lost = False

    def tell(error: Exception) -> None:
        nonlocal lost
        if not lost:
            lost = True
            print(
                f"standard output cannot be written ({_reason(error)}); the log is incomplete from "
                "here on, and everything else goes on",
                file=sys.stderr,
                flush=True,
            )

    with _replaced("stderr", lambda error: None), _replaced("stdout", tell):
        yield


@contextlib.contextmanager
def result_streams() -> Iterator[None]:
    """Inside, standard output is a command's result: a failure to write it ends the command.

    It raises `InputError`, or `BrokenPipeError` where the reader went away. Standard error stays a
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
    if isinstance(stream, GuardedStream):  # a command that trains, say
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
    """Python flushes once more at its end, and must not meet the failure again."""
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
