"""`--input=$UNSET`: an empty value is a mistake in the shell script, not an omitted flag."""

from __future__ import annotations

from collections.abc import Iterable

from jaxformer.errors import InputError


def refuse_empty(arguments: Iterable[str]) -> None:
    """Raise `InputError` naming the first flag with an empty value, if there is one."""
    before = ""
    for argument in arguments:
        if argument == "--":
            return
        name, equals, value = argument.partition("=")
        if not argument or (argument.startswith("-") and equals and not value):
            flag = name or before.partition("=")[0] or "an argument"
            raise InputError(
                f"{flag} is empty (is a shell variable unset?); give it a value, or leave it out"
            )
        before = argument
