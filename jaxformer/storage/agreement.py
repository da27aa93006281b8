"""Sharing what one process finds on disk with all others.

All processes call each function at the same place; with a single process it costs nothing. No
device is involved, so the others can wait as long as the first one reads.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxformer.errors import InputError
from jaxformer.runtime.distributed import gather, is_first_process

__all__ = ["ask_first_process", "is_first_process"]


def ask_first_process(question: Callable[[], int | None]) -> int | None:
    """The first process's answer to `question`; the others do not call it.

    Raises:
      InputError: raised by the first process, and then by all.
    """
    answer, refusal = None, ""
    if is_first_process():
        try:
            answer = question()
        except InputError as error:
            refusal = str(error)
    answer, refusal = gather([answer, refusal])[0]
    if refusal:
        raise InputError(refusal)
    return answer
