"""Read `--config` flags and check them before absl does, so that errors take one line."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxformer.commands.config_files import check_config_file
from jaxformer.config import SECTIONS, field_types, unknown_field
from jaxformer.errors import InputError

# Fields that a run fills in, with the field to set instead.
DERIVED = {
    "model.vocab_size": "tokenizer.vocab_size",
    "model.target_vocab_size": "tokenizer.joint=false and tokenizer.vocab_size",
}


def check_arguments(arguments: list[str]) -> str:
    """Check the config file and each `--config.section.field=value` of a command line.

    Args:
      arguments: without the program's name.

    Returns:
      The config file that the command line names; empty if it names none.

    Raises:
      InputError: the file or a field does not exist (the nearest field is named), or a value is not
        of the field's type.
    """
    position, file = 0, ""
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
            check_config_file(value)
            file = value
        else:
            parse_value(name.partition(".")[2], value)
    return file


def parse_value(path: str, text: str, where: str = "--config") -> Any:
    """Parse the text of a flag `--config.path=text` as the field's type.

    Args:
      path: of the field, such as `model.d_model`.
      text: the value.
      where: what precedes the path in messages.

    Returns:
      The value as int, float, str or bool.

    Raises:
      InputError: no such field (the nearest one is named), or the text is not of its type.
    """
    expected = field_types().get(path)
    if path in DERIVED:
        raise InputError(f"{where}.{path} follows from the tokenizer; set {where}.{DERIVED[path]}")
    if expected is None:
        if path in SECTIONS:
            raise InputError(
                f"{where}.{path} is a section; set one of its fields, e.g. "
                f"{where}.{path}.{dataclasses.fields(SECTIONS[path])[0].name}=..."
            )
        raise unknown_field(path, where)
    if expected is str:
        return text
    if expected is bool:
        if text.lower() in ("true", "1"):
            return True
        if text.lower() in ("false", "0"):
            return False
        raise InputError(f"{where}.{path}={text}: not a bool; use true or false")
    try:
        return expected(text.replace("_", ""))
    except ValueError:
        hint = "a whole number such as 1000" if expected is int else "a number such as 0.1"
        raise InputError(f"{where}.{path}={text}: not {expected.__name__}; use {hint}") from None
