"""`--input=$UNSET`: an empty value is a mistake of the shell script, never "not given"."""

from __future__ import annotations

from collections.abc import Iterable

from jaxformer.errors import InputError


def refuse_empty(arguments: Iterable[str]) -> None:
    """Raise `InputError` that names the first flag of a command line with an empty value."""
    before = ""
    for argument in arguments:
        if argument == "--":
            return
        name, equals, value = argument.partition("=")
        if not argument or (argument.startswith("-") and equals and not value):
            flag = name or before.partition("=")[0] or "an argument"
            raise InputError(
                f"{flag} is empty (is a variable of the shell unset?); give it a value, or leave "
                "it out"
            )
        before = argument
