"""What one process finds on disk and all of them have to know.

Every function is called by all processes at the same place, and costs nothing where there is one.
No device takes part, so that the others can wait for as long as the first one reads.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxformer.errors import InputError
from jaxformer.runtime.distributed import gather, is_first_process

__all__ = ["ask_first_process", "is_first_process"]


def ask_first_process(question: Callable[[], int | None]) -> int | None:
    """The answer that the first process finds to `question`; the others do not look.

    Raises:
      InputError: the first process did.
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
