"""Reading metrics.jsonl: one JSON object per line, with `step` and `split`."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class MetricsLine(NamedTuple):
    """A line of metrics.jsonl.

    Attributes:
      number: from 1.
      content: its bytes without the line end.
      row: the parsed object; None if the line is damaged.
      problem: what is wrong; empty if nothing.
    """

    number: int
    content: bytes
    row: dict[str, Any] | None
    problem: str = ""


def read_lines(content: bytes) -> list[MetricsLine]:
    """The lines of a file's content, without a last line that has no end: it is incomplete."""
    lines = content.split(b"\n")[:-1]
    return [read_line(number, line) for number, line in enumerate(lines, start=1)]


def read_line(number: int, content: bytes) -> MetricsLine:
    """Parse one line, ignoring NULs around it, which a power cut leaves behind."""
    try:
        row = json.loads(content.strip(b"\0").decode("utf-8"))
        if type(row["step"]) is not int or type(row["split"]) is not str:
            raise ValueError("step must be a whole number and split a string")
    except (ValueError, KeyError, TypeError) as error:
        problem = f"not a row with step and split: {error}"
        return MetricsLine(number, content, None, problem)
    return MetricsLine(number, content.strip(b"\0"), row)
