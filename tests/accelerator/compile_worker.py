"""Compiles for one platform in a process of its own: combinations come as lines of JSON.

The process that tests runs on simulated CPU devices, with flags and a precision of products that
must not reach the programs that are compiled here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def captured_errors() -> Iterator[list[str]]:
    """What XLA writes to file descriptor 2 meanwhile, as lines."""
    lines: list[str] = []
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            lines += file.read().decode("utf-8", "replace").splitlines()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Facts of a combination, or why it cannot be compiled.

    With `whole_lookups` the model does not cut the rows that it looks up as the batch is cut, to
    show what is noticed.
    """
    from accelerator.combinations import Combination
    from accelerator.programs import measure

    broken = mock.patch("jaxformer.models.embedding.shard_like_batch", lambda embedded: embedded)
    whole_lookups = request.pop("whole_lookups")
    with captured_errors() as lines, broken if whole_lookups else contextlib.nullcontext():
        try:
            facts = measure(Combination(**request))
        except Exception as error:
            facts = {"error": f"{type(error).__name__}: {error}"}
    return facts | {"warnings": [line for line in lines if "rematerialization" in line]}


def main(platform: str) -> None:
    from jaxformer.runtime.xla_flags import add_xla_flags

    add_xla_flags(os.environ, platform)
    os.environ["JAXFORMER_XLA_FLAGS"] = "off"  # nobody adds those of the processor that it runs on
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what libraries print is no answer
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
