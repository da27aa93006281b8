"""Folders of files on a disk or in an object store: listed, measured, copied and deleted."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxformer.files.user_paths import may_write


def as_path(folder: Path) -> Any:
    """A path on a disk or in an object store, both with the same methods.

    Do not use its `stat`: on a disk it looks up the name of the owner, who often has none in a
    container or on a shared disk.
    """
    from etils import epath

    return epath.Path(folder)


def is_local(path: Path) -> bool:
    """Whether a path is on a disk; an object store has neither links nor renames."""
    return "://" not in os.fspath(path)


def is_link(path: Path) -> bool:
    """Whether a path is a symbolic link, dangling or not."""
    return is_local(path) and os.path.islink(path)


def make_folder(path: Path) -> None:
    """Make a folder and its parents if they do not exist.

    Raises:
      OSError: it cannot be made or is not writable.
    """
    as_path(path).mkdir(parents=True, exist_ok=True)
    if is_local(path) and not may_write(Path(path)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))


def reason(error: Exception, most: int = 400) -> str:
    """Why something failed, in one line; an OSError without its path, which the caller names."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())  # a long one has the cause at its end, after the paths
    return text if len(text) <= most else f"{text[: most // 4]} ... {text[-most // 4 * 3 :]}"


def file_names(folder: Path, *, skip_unreadable: bool = False) -> Iterator[str]:
    """Every file below a folder, such as `params/d/0a1b`.

    Args:
      folder: on a disk or in an object store.
      skip_unreadable: skip folders that cannot be listed.

    Raises:
      OSError: a folder cannot be listed.
    """
    return _file_names(as_path(folder), "", skip_unreadable)


def _file_names(folder: Any, prefix: str, skip_unreadable: bool) -> Iterator[str]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        if not skip_unreadable:
            raise
        paths = []
    for path in paths:
        if path.is_dir():
            yield from _file_names(path, f"{prefix}{path.name}/", skip_unreadable)
        else:
            yield prefix + path.name


def tree_bytes(folder: Path) -> int:
    """Bytes of the files in a folder on a disk, without the targets of links."""
    if is_link(folder):
        return 0
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:  # deleted meanwhile
                continue
    return total


def copy_tree(source: Path, target: Path) -> None:
    """Copy every file of a folder into a new one.

    Raises:
      OSError: a file cannot be read or written.
    """
    source, target = as_path(source), as_path(target)
    for name in file_names(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).copy(target / name)


def delete_tree(path: Path, report: Callable[[str], None]) -> None:
    """Delete a folder, file or link if it exists, but never the target of a link.

    Args:
      path: on a disk or in an object store.
      report: called for each link out of `path`, whose target stays.

    Raises:
      OSError: a part of it cannot be deleted.
    """
    if not is_local(path):
        as_path(path).rmtree(missing_ok=True)
        return
    place = os.fspath(path)
    left = {link: os.path.realpath(link) for link in _links_out_of(place)}
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)
    for link, target in left.items():
        report(f"{link} was a link: only the link was deleted, its files are still in {target}")


def _links_out_of(place: str) -> Iterator[str]:
    if os.path.islink(place):
        yield place
        return
    root = os.path.realpath(place)
    for parent, folders, files in os.walk(place):
        for name in (*folders, *files):
            link = os.path.join(parent, name)
            if os.path.islink(link) and os.path.commonpath([root, os.path.realpath(link)]) != root:
                yield link
