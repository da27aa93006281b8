"""Print the commands of the first code block under a heading of README.md."""

import sys
from pathlib import Path


def commands(heading: str) -> str:
    """The lines of the first ```sh block after the line `## heading`."""
    lines = (Path(__file__).parents[1] / "README.md").read_text("utf-8").split("\n")
    start = lines.index(f"## {heading}")
    first = lines.index("```sh", start) + 1
    return "\n".join(lines[first : lines.index("```", first)])


if __name__ == "__main__":
    print(commands(sys.argv[1]))
