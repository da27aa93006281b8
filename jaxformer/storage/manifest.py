"""The list of a checkpoint's files, which verifies or refuses it."""

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
# By far the fastest checksum in the standard library, and certain to find any damage within four
# bytes. It protects against disks and networks, not against people.
ALGORITHM = "crc32"
CHUNK_BYTES = 1 << 20
THREADS = 4  # files read at once; zlib and the disk both run without Python's lock
# Files that orbax 0.12.8 reads if they exist, found by adding each one to a checkpoint without it;
# all others are only read if one of these names them.
ARRAY_ITEMS, JSON_FILES = ("params", "optimizer", "ema"), ("meta/metadata", "metrics/metrics")
ARRAY_FILES = ("_METADATA", "_CHECKPOINT_METADATA", "_sharding", "checkpoint", "manifest.ocdbt")
READ_BY_NAME = ("_CHECKPOINT_METADATA", *JSON_FILES) + tuple(
    f"{item}/{name}" for item in ARRAY_ITEMS for name in ARRAY_FILES
)
READ_BY_PATTERN = "process_*"  # in the folder array_metadatas of an item
# What file systems and desktops create in any folder, and may remove again.
LITTER = (".nfs*", ".DS_Store", "._*", "Thumbs.db", "desktop.ini")


class FileRecord(NamedTuple):
    """A file's entry in a manifest.

    Attributes:
      size: bytes.
      checksum: eight hexadecimal digits.
    """

    size: int
    checksum: str


def write_manifest(folder: Path) -> int:
    """List every file of a finished checkpoint folder with its size and checksum.

    The manifest is the last file of a checkpoint and appears atomically: a folder without it is not
    a checkpoint. Object stores only show whole files; on a local disk it is also synchronised.

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
    """The problems of a checkpoint folder, one line each, beginning with the file's name.

    Args:
      folder: of one checkpoint.
      parts: its folders to be read, such as `params`; None: everything.

    Returns:
      Empty if every listed file has its size and checksum, and no unlisted file would be read.
      Other files are harmless, see `stray_files`.
    """
    root = as_path(folder)
    try:
        listed = read_manifest(root)
    except FileNotFoundError:
        lost = is_link(folder) and not os.path.exists(folder)
        where = f" (a link to {os.readlink(folder)}, which does not exist)" if lost else ""
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
    """Files in a good checkpoint's folder that do not belong to it, by name."""
    known = {MANIFEST, *read_manifest(folder)}
    return sorted(set(file_names(folder, skip_unreadable=True)) - known)


def require_verified(folder: Path, parts: Iterable[str] | None = None) -> None:
    """Raise `InputError` naming the damaged files of a checkpoint, if there are any."""
    problems = verify(folder, parts)
    if problems:
        raise InputError(f"{folder} is not a good checkpoint: {describe(problems)}; {REPAIR}")


REPAIR = (
    "choose another one with --checkpoint, or copy it again. If a version without manifests wrote "
    "it and you trust it: python -m jaxformer verify --workdir=... --accept"
)


def describe(problems: list[str], most: int = 4) -> str:
    """The first problems that `verify` found, and the number of others."""
    more = f", and {len(problems) - most} more" if len(problems) > most else ""
    return ", ".join(problems[:most]) + more


def read_manifest(folder: Path) -> dict[str, FileRecord]:
    """The files that a checkpoint's manifest lists, by name.

    Raises:
      FileNotFoundError: there is no manifest.
      ValueError: it is damaged.
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
    """Whether a checkpoint was written with the folder `name`, such as `ema`.

    The manifest decides, because the folder itself may have been lost.
    """
    return any(file.startswith(f"{name}/") for file in read_manifest(folder))


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A verified JSON file of a checkpoint, such as `meta/metadata`; empty if there is none.

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
    except ValueError as error:  # `verify --accept` accepted it unread
        raise InputError(f"{folder} is not a good checkpoint: {name}: {error}; {REPAIR}") from error
    return values


def _render(records: dict[str, FileRecord]) -> str:
    """The manifest's text, unique for given records, so that every changed byte is found."""
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
    return "" if found == record else f"{ALGORITHM} differs from when it was saved"


def _record(path: Any) -> FileRecord:
    value = size = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
            size += len(chunk)
    return FileRecord(size, f"{value:08x}")


def _read_unasked(root: Any) -> set[str]:
    """The files of a folder that would be read even if its manifest does not list them."""
    found = {name for name in READ_BY_NAME if (root / name).exists()}
    for folder in (f"{item}/array_metadatas" for item in ARRAY_ITEMS):
        with contextlib.suppress(OSError):  # the folder does not exist
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
