"""Check `--config` flags before absl sees them, so that a mistake is answered in one line."""

from __future__ import annotations

from pathlib import Path

from jaxformer.config import parse_value
from jaxformer.errors import InputError


def check_arguments(arguments: list[str]) -> None:
    """Check the config file and each `--config.section.field=value` of a command line.

    Args:
      arguments: without the program's name.

    Raises:
      InputError: the file is not there, a field does not exist (the nearest is named), or a value
        is not of the field's type.
    """
    position = 0
    while position < len(arguments) and arguments[position] != "--":
        argument = arguments[position]
        position += 1
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name.partition(".")[0] != "config":
            continue
        if not equals:
            if position == len(arguments):
                raise InputError(f"{argument} has no value; write {argument}=...")
            value = arguments[position]
            position += 1
        if name == "config":
            _check_file(value)
        else:
            parse_value(name.partition(".")[2], value)


def _check_file(value: str) -> None:
    path = Path(value)
    if not path.is_file():
        there = sorted(path.parent.glob("*.py")) if path.parent.is_dir() else []
        known = ", ".join(map(str, there)) or f"no config file in {path.parent}"
        raise InputError(f"--config={value}: no such file; there is: {known}")
