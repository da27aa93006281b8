"""How a program ends: the exit status and one-line message of each kind of failure."""

from __future__ import annotations

import sys
from collections.abc import Callable

from jaxformer.errors import InputError

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def exit_status(run: Callable[[], int], *, diverged: int = BAD_INPUT) -> int:
    """Call `run`; errors caused by the user or the machine become one line and a status.

    Args:
      run: returns a status.
      diverged: status of a `FloatingPointError`.

    Returns:
      The status that `run` returns; 2 for bad input, operating system errors and exhausted memory;
      130 after Ctrl-C; 141, without a message, if the reader closed the pipe. A bug of ours keeps
      its traceback.
    """
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return BROKEN_PIPE
    except Exception as error:
        message = describe(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return diverged if isinstance(error, FloatingPointError) else BAD_INPUT


def describe(error: Exception) -> str | None:
    """One line for an error caused by the user or the machine; None for a bug of ours."""
    if isinstance(error, InputError | FloatingPointError):
        return str(error)
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{error.filename}: {reason}"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
    ):
        reason = " ".join(str(error).partition("\n")[0].split()) or "no memory is left"
        return (
            f"out of memory: {reason}; lower --max_length, --beam_size or "
            "decoding.tokens_per_batch, or use a machine with more memory"
        )
    return None
