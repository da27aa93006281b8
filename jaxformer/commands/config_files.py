"""Run configuration files, and report their errors in one line."""

from __future__ import annotations

import os
import runpy
import traceback
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError


def check_config_file(name: str) -> None:
    """Raise `InputError`, naming the files that do exist, unless `name` is a file."""
    path = Path(name)
    if not path.is_file():
        there = sorted(path.parent.glob("*.py")) if path.parent.is_dir() else []
        known = ", ".join(map(str, there)) or f"none in {path.parent}"
        raise InputError(f"--config={name}: no such file; config files: {known}")


def run_config_file(name: str) -> dict[str, Any]:
    """The values that `get_config()` of a file returns.

    Raises:
      InputError: the file does not exist or raises an error; the message has the error's line.
    """
    check_config_file(name)
    try:
        values = runpy.run_path(name)["get_config"]()
    except Exception as error:  # whatever the user's code raises
        raise config_file_error(name, error) from error
    return require_config(name, values).to_dict()


def require_config(name: str, values: Any) -> Any:
    """`values` if it is a `ConfigDict`, as `get_config()` must return; else `InputError`."""
    if not hasattr(values, "to_dict"):
        raise InputError(
            f"--config={name}: get_config() returns {values!r:.60}; return a ConfigDict, "
            "such as Config().to_config_dict()"
        )
    return values


def raised_in(name: str, error: BaseException) -> bool:
    """Whether an error comes from the code of a configuration file."""
    return bool(_lines(name, _innermost(error)))


def config_file_error(name: str, error: BaseException) -> InputError:
    """The message for an error raised by running a configuration file."""
    error = _innermost(error)
    lines = _lines(name, error)
    if isinstance(error, KeyError | AttributeError) and not lines and "get_config" in str(error):
        return InputError(f"--config={name} defines no get_config(); see configs/pocket.py")
    where = f", line {lines[-1]}" if lines else ""
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return InputError(f"--config={name}{where}: {kind}{error}")


def _innermost(error: BaseException) -> BaseException:
    """The innermost `InputError`, or else the original error; absl and others wrap both."""
    chain = [error]
    while chain[-1].__context__ is not None:
        chain.append(chain[-1].__context__)
    return next((e for e in reversed(chain) if isinstance(e, InputError)), chain[-1])


def _lines(name: str, error: BaseException) -> list[int]:
    """The lines of a configuration file in an error's traceback, innermost last."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return [error.lineno]
    frames = traceback.extract_tb(error.__traceback__)
    path = os.path.abspath(name)
    return [f.lineno for f in frames if f.lineno and os.path.abspath(f.filename) == path]
