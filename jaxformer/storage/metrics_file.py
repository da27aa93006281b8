"""metrics.jsonl: one JSON object a line, with `step` and `split`; how its lines are read."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class MetricsLine(NamedTuple):
    """A line of metrics.jsonl.

    Attributes:
      number: from 1.
      content: its bytes, without its end.
      row: what it says; None if it is damaged.
      problem: what is wrong with it; empty if nothing is.
    """

    number: int
    content: bytes
    row: dict[str, Any] | None
    problem: str = ""


def read_lines(content: bytes) -> list[MetricsLine]:
    """The lines of a file's content; a last one without its end is left out: it was cut short."""
    lines = content.split(b"\n")[:-1]
    return [read_line(number, line) for number, line in enumerate(lines, start=1)]


def read_line(number: int, content: bytes) -> MetricsLine:
    """One line. NULs around it, which a power cut leaves behind, are no part of it."""
    try:
        row = json.loads(content.strip(b"\0").decode("utf-8"))
        if type(row["step"]) is not int or type(row["split"]) is not str:
            raise ValueError("step must be a whole number and split a string")
    except (ValueError, KeyError, TypeError) as error:
        problem = f"not a row with step and split: {error}"
        return MetricsLine(number, content, None, problem)
    return MetricsLine(number, content.strip(b"\0"), row)
