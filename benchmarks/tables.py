"""Tables of the benchmarks."""

from __future__ import annotations


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """The first column to the left, the others, numbers, to the right."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
