"""Paths that a user writes, and the cache folder."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

from jaxformer.errors import InputError


def expand_user(path: str | os.PathLike, name: str) -> Path:
    """`path` with a leading `~` or `~user` replaced by that home folder.

    Args:
      path: as the user wrote it.
      name: the option or variable that holds it, for the message.

    Raises:
      InputError: there is no such user, or the home folder is unknown.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        first = Path(path).parts[0]
        raise InputError(
            f"{name}={os.fspath(path)}: {first} has no home folder on this machine; write the "
            "full path" + (", or set HOME" if first == "~" else "")
        ) from None


def cache_folder() -> Path:
    """The cache folder: JAXFORMER_CACHE or ~/.cache/jaxformer.

    Without a writable home folder it is a private folder in the temporary folder.

    Raises:
      InputError: JAXFORMER_CACHE begins with the home folder of a user who has none.
    """
    named = os.environ.get("JAXFORMER_CACHE", "")
    if named:
        return expand_user(named, "JAXFORMER_CACHE")
    try:
        folder = Path.home() / ".cache" / "jaxformer"
    except RuntimeError:
        return private_temporary_folder()
    return folder if can_be_written(folder) else private_temporary_folder()


def can_be_written(folder: Path) -> bool:
    """Whether a folder, or its nearest existing parent, is writable."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place.is_dir() and may_write(place)
    return False


def may_write(path: Path) -> bool:
    """Whether this process, under its effective user, may write a file or into a folder."""
    mode = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


@functools.cache
def private_temporary_folder() -> Path:
    """A temporary folder that nobody else can write, since it holds compiled programs.

    All processes of a user share it, unless someone else has taken its name.
    """
    folder = Path(tempfile.gettempdir()) / f"jaxformer-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
        if private and found.st_uid == os.getuid():
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="jaxformer-"))
