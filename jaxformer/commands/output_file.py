"""The file that `--output` of a command names."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from jaxformer.errors import InputError

# What only writing fails with; other failures inside `open_output` belong to what is read.
WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)


def check_output(name: str, example: str = "translations.txt") -> Path:
    """The file that --output names, refused before any work is done where it cannot be written."""
    path = Path(name)
    if path.is_dir():
        raise InputError(f"--output={name} is a folder; name a file, such as {path / example}")
    if not path.parent.is_dir():
        raise InputError(f"--output={name}: there is no folder {path.parent}; make it first")
    return path


@contextmanager
def open_output(path: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears under its name only when it is complete.

    Devices and pipes are written as they are, and a link stays one.
    """
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
        yield sys.stdout
        return
    target = check_output(path).resolve()
    in_place = target.exists() and not target.is_file()
    written = target if in_place else target.with_name(f"{target.name}.partial")
    try:
        with open(written, "w", encoding="utf-8", newline="\n") as file:
            yield file
        if not in_place:
            written.replace(target)
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        raise InputError(f"--output={path}: cannot be written: {error.strerror}") from error
