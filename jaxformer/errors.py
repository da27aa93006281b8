"""The one exception for bad input: commands print it in one line and exit with status 2."""

import difflib
import math


class InputError(ValueError):
    """Something the user gave is wrong: a config value, a file, a flag, a workdir.

    The message names the field (or file and line), the value and the repair. It is a
    `ValueError`, so library users may catch it as one.
    """


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of `choices`.

    Args:
      name: name of the field, for the message.
      value: checked value.
      choices: allowed values.

    Raises:
      InputError: it is not; the message proposes the nearest.
    """
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.0)
        raise InputError(f"{name}={value!r} is not one of {', '.join(choices)}; nearest: {near[0]}")


def check_range(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Check that `value` is finite and `low <= value <= high`.

    Args:
      name: name of the field, for the message.
      value: checked value.
      low, high: bounds, both allowed.

    Raises:
      InputError: it is not.
    """
    if not (math.isfinite(value) and low <= value <= high):
        finite = "finite and " if value == high else ""  # inf, where there is no upper bound
        bounds = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise InputError(f"{name}={value!r} must be {finite}{bounds}")
