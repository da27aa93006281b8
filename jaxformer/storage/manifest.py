"""The list of a checkpoint's files, by which it is verified or refused."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.errors import InputError
from jaxformer.storage.file_trees import as_path, file_names, is_link, is_local

MANIFEST = "MANIFEST.json"
# Of the checksums in the standard library the fastest by far, and sure to see any damage within
# four bytes. It guards against what disks and networks do, not against people.
ALGORITHM = "crc32"
CHUNK_BYTES = 1 << 20
THREADS = 4  # files read at once; zlib and the disk both work outside Python's lock
# Files that are read because they are there, found in orbax 0.12.8 by adding each one to a
# checkpoint without it; all others are read only where one of these names them.
ARRAY_ITEMS, JSON_FILES = ("params", "optimizer", "ema"), ("meta/metadata", "metrics/metrics")
ARRAY_FILES = ("_METADATA", "_CHECKPOINT_METADATA", "_sharding", "checkpoint", "manifest.ocdbt")
READ_BY_NAME = ("_CHECKPOINT_METADATA", *JSON_FILES) + tuple(
    f"{item}/{name}" for item in ARRAY_ITEMS for name in ARRAY_FILES
)
READ_BY_PATTERN = "process_*"  # in the folder array_metadatas of an item
# What file systems and desktops leave in any folder, and may take away again.
LITTER = (".nfs*", ".DS_Store", "._*", "Thumbs.db", "desktop.ini")


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

    Raises:
      OSError: a file cannot be read, or the manifest cannot be written.
    """
    root = as_path(folder)
    names = sorted(name for name in set(file_names(root)) - {MANIFEST} if not _is_litter(name))
    with ThreadPoolExecutor(THREADS) as threads:
        records = dict(zip(names, threads.map(lambda n: _record(root / n), names), strict=True))
    text = _render(records)
    if is_local(root):
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
      Nothing if every listed file is there with its size and checksum, and none that is not listed
      would be read. Other files do no harm: see `stray_files`.
    """
    root = as_path(folder)
    try:
        listed = read_manifest(root)
    except FileNotFoundError:
        lost = is_link(folder) and not os.path.exists(folder)
        where = f" (a link to {os.readlink(folder)}, which is not there)" if lost else ""
        return [f"{MANIFEST}: missing{where}"]
    except (ValueError, OSError) as error:
        return [f"{MANIFEST}: {error}"]
    chosen = None if parts is None else set(parts)

    def wanted(names: Iterable[str]) -> list[str]:
        return sorted(n for n in names if chosen is None or n.partition("/")[0] in chosen)

    names = wanted(listed)
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda name: _compare(root / name, listed[name]), names))
    problems = [f"{name}: {fault}" for name, fault in zip(names, found, strict=True) if fault]
    extra = wanted(_read_unasked(root) - listed.keys())
    return problems + [f"{name}: not in {MANIFEST}" for name in extra]


def stray_files(folder: Path) -> list[str]:
    """Files in a good checkpoint's folder that are no part of it, by name."""
    known = {MANIFEST, *read_manifest(folder)}
    return sorted(set(file_names(folder, skip_unreadable=True)) - known)


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
    content = (as_path(folder) / MANIFEST).read_bytes()
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


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a checkpoint, `meta/metadata` say, verified; empty if there is none.

    Raises:
      InputError: the part that holds it is damaged.
    """
    require_verified(folder, (name.partition("/")[0],))
    if name not in read_manifest(folder):
        return {}
    try:
        values = json.loads((as_path(folder) / name).read_text("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:  # `verify --accept` took it as it was
        raise InputError(f"{folder} is not a good checkpoint: {name}: {error}; {REPAIR}") from error
    return values


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
        found = _record(path)
    except OSError as error:
        return f"cannot be read ({error})"
    if found.size != record.size:
        return f"{found.size:,} bytes instead of {record.size:,}"
    return "" if found == record else f"another {ALGORITHM} than when it was saved"


def _record(path: Any) -> FileRecord:
    value = size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
            size += len(chunk)
    return FileRecord(size, f"{value:08x}")


def _read_unasked(root: Any) -> set[str]:
    """The files of a folder that would be read whether its manifest lists them or not."""
    found = {name for name in READ_BY_NAME if (root / name).exists()}
    for folder in (f"{item}/array_metadatas" for item in ARRAY_ITEMS):
        with contextlib.suppress(OSError):  # it is not there
            names = [path.name for path in (root / folder).iterdir()]
            found |= {f"{folder}/{name}" for name in fnmatch.filter(names, READ_BY_PATTERN)}
    return found


def _is_litter(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.rpartition("/")[2], pattern) for pattern in LITTER)


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
