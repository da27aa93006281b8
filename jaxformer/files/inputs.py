"""Input files, `.gz` files, pipes and standard input, opened in one way.

Lines end only at the byte LF, so that U+2028, U+0085 or a lone CR inside a sentence cannot misalign
source and target.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from jaxformer.errors import InputError
from jaxformer.files.descriptors import descriptor_of, is_regular

_CHUNK = 1 << 20  # bytes
_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_input(path: str | Path) -> Iterator[BinaryIO]:
    """Open for reading bytes; `.gz` is decompressed.

    Raises:
      InputError: the file is missing, cannot be read, or is damaged.
    """
    path = os.fspath(path)
    descriptor = descriptor_of(path)
    try:
        opened = path if descriptor is None else os.dup(descriptor)
        with gzip.open(path, "rb") if path.endswith(".gz") else open(opened, "rb") as file:
            yield file
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: damaged or truncated gzip data ({error})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def standard_input() -> Iterator[str]:
    """Stream the lines of standard input, as `read_lines` does for a file.

    Raises:
      InputError: standard input is closed, or a line is not UTF-8.
    """
    if sys.stdin is None:
        raise InputError("standard input is closed; give a file with --input")
    return decode_lines(sys.stdin.buffer, "standard input")


def read_lines(path: str | Path) -> Iterator[str]:
    """Stream the lines of a UTF-8 text file (.gz too) without their line ends.

    Lines end only at LF. One CR before it is dropped, and so is a byte order mark at the start of
    the file. An LF at the very end of the file does not start another line.

    Raises:
      InputError: the file is missing or damaged, or a line is not UTF-8 (line and byte are named).
    """
    with open_input(path) as file:
        yield from decode_lines(file, path)


def decode_lines(file: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """The same for an open binary stream, called `name` in errors."""
    for number, line in enumerate(file, start=1):
        yield _decode(line, name, number)


def _decode(line: bytes, path: str | Path, number: int) -> str:
    line = line[:-1] if line.endswith(b"\n") else line
    line = line[:-1] if line.endswith(b"\r") else line
    line = line[len(_BOM) :] if number == 1 and line.startswith(_BOM) else line
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}, line {number}: not UTF-8: byte 0x{line[error.start]:02X} at offset "
            f"{error.start} of the line; convert the file, e.g. iconv -f LATIN1 -t UTF-8"
        ) from None


def count_lines(path: str | Path) -> int:
    """Number of lines that `read_lines` yields, without decoding them.

    Raises:
      InputError: the file cannot be read.
      ValueError: it is a pipe or a device, which counting would consume.
    """
    if Path(path).exists() and not is_regular(path):
        raise ValueError(f"{path} is not a regular file; counting its lines would consume them")
    count, last = 0, b"\n"
    for chunk in read_chunks(path):
        count += chunk.count(b"\n")
        last = chunk[-1:]
    return count + (last != b"\n")


def read_chunks(path: str | Path) -> Iterator[bytes]:
    """The (decompressed) bytes of a file, one mebibyte at a time."""
    with open_input(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def require_readable(path: str | Path) -> None:
    """Raise `InputError` if a file cannot be read; a pipe or a device is not touched."""
    if is_regular(path) or not Path(path).exists() or Path(path).is_dir():
        with open_input(path):
            pass


def require_shared(path: str | Path | None, flag: str) -> None:
    """Raise `InputError` unless all processes of a job can read an input; None: standard input."""
    if path is None or not is_regular(path):
        raise InputError(
            f"{flag}={path or ''}: several processes need a file that each can read; they cannot "
            "share a pipe or standard input"
        )
