"""The list of a checkpoint's files, by which it is verified or refused."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.errors import InputError

MANIFEST = "MANIFEST.json"
# Of the checksums in the standard library the fastest by far, and sure to see any damage within
# four bytes. It guards against what disks and networks do, not against people.
ALGORITHM = "crc32"
CHUNK_BYTES = 1 << 20
THREADS = 4  # files read at once; zlib and the disk both work outside Python's lock


class FileRecord(NamedTuple):
    """What a manifest knows of a file.

    Attributes:
      size: bytes.
      checksum: eight hexadecimal digits.
    """

    size: int
    checksum: str


def write_manifest(folder: Path) -> int:
    """Write down every file of a finished checkpoint folder, by size and checksum.

    It is the last file of a checkpoint and appears at once: a folder without it is none. Object
    stores show whole files only; on a local disk it is also synchronised.

    Returns:
      Bytes of all files.
    """
    root = _path(folder)
    names = sorted(set(_file_names(root)) - {MANIFEST})
    with ThreadPoolExecutor(THREADS) as threads:
        records = dict(zip(names, threads.map(lambda n: _record(root / n), names), strict=True))
    text = _render(records)
    if _is_local(root):
        _replace_synchronised(Path(root) / MANIFEST, text)
    else:
        (root / MANIFEST).write_text(text)
    return sum(record.size for record in records.values())


def verify(folder: Path, parts: Iterable[str] | None = None) -> list[str]:
    """What is wrong with a checkpoint folder, a line each that begins with the file's name.

    Args:
      folder: of one checkpoint.
      parts: folders directly in it that are to be read, `params` say; None: all that is there.

    Returns:
      Nothing if every file is there, no other is, and sizes and checksums agree.
    """
    root = _path(folder)
    try:
        listed = read_manifest(root)
    except FileNotFoundError:
        return [f"{MANIFEST}: missing"]
    except (ValueError, OSError) as error:
        return [f"{MANIFEST}: {error}"]
    chosen = None if parts is None else set(parts)

    def wanted(names: Iterable[str]) -> list[str]:
        return sorted(n for n in names if chosen is None or n.partition("/")[0] in chosen)

    names = wanted(listed)
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda name: _compare(root / name, listed[name]), names))
    problems = [f"{name}: {fault}" for name, fault in zip(names, found, strict=True) if fault]
    extra = wanted(set(_file_names(root)) - {MANIFEST} - listed.keys())
    return problems + [f"{name}: not in {MANIFEST}" for name in extra]


def require_verified(folder: Path, parts: Iterable[str] | None = None) -> None:
    """Raise `InputError` that names every damaged file of a checkpoint, if there are any."""
    problems = verify(folder, parts)
    if problems:
        raise InputError(f"{folder} is not a good checkpoint: {describe(problems)}; {REPAIR}")


REPAIR = (
    "choose another one with --checkpoint, or copy it again. If it is older than manifests and "
    "you trust it: python -m jaxformer verify --workdir=... --accept"
)


def describe(problems: list[str], most: int = 4) -> str:
    """The first of the problems that `verify` found, and how many more there are."""
    more = f", and {len(problems) - most} more" if len(problems) > most else ""
    return ", ".join(problems[:most]) + more


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """The files that a checkpoint's manifest lists, by name.

    Raises:
      FileNotFoundError: there is no manifest.
      ValueError: it is not as it was written.
    """
    content = (_path(folder) / MANIFEST).read_bytes()
    try:
        listed = {
            name: FileRecord(*record) for name, record in json.loads(content)["files"].items()
        }
        same = _render(listed).encode() == content
    except (ValueError, KeyError, TypeError, AttributeError):
        same = False
    if not same:
        raise ValueError("damaged")
    return listed


def has_part(folder: Path, name: str) -> bool:
    """Whether a checkpoint was written with the folder `name` in it, `ema` say.

    The folder itself does not tell: it may have been lost.
    """
    return any(file.startswith(f"{name}/") for file in read_manifest(folder))


def _render(records: dict[str, FileRecord]) -> str:
    """The manifest's text: one for given records, so that every changed byte of it is seen."""
    lines = [f"  {json.dumps(name)}: {json.dumps(list(records[name]))}" for name in sorted(records)]
    files = ",\n".join(lines)
    return (
        "{\n"
        f' "algorithm": "{ALGORITHM}",\n'
        f' "total_bytes": {sum(record.size for record in records.values())},\n'
        f' "checksum_of_files": "{zlib.crc32(files.encode()):08x}",\n'
        f' "files": {{\n{files}\n }}\n'
        "}\n"
    )


def _compare(path: Any, record: FileRecord) -> str:
    try:
        if not path.is_file():
            return "missing"
        size = path.stat().length
        if size != record.size:
            return f"{size:,} bytes instead of {record.size:,}"
        return "" if _record(path) == record else f"another {ALGORITHM} than when it was saved"
    except OSError as error:
        return f"cannot be read ({error})"


def _record(path: Any) -> FileRecord:
    value = size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
            size += len(chunk)
    return FileRecord(size, f"{value:08x}")


def _file_names(folder: Any, prefix: str = "") -> Iterator[str]:
    for path in folder.iterdir():
        if path.is_dir():
            yield from _file_names(path, f"{prefix}{path.name}/")
        else:
            yield prefix + path.name


def _path(folder: Path) -> Any:
    """A path of a disk or an object store, both with the same methods."""
    from etils import epath

    return epath.Path(folder)


def _is_local(path: Any) -> bool:
    return "://" not in os.fspath(path)


def _replace_synchronised(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
