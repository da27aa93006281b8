"""Names of open descriptors: /dev/stdin, /dev/stdout, /dev/fd/63, /proc/self/fd/1."""

from __future__ import annotations

import os
import re
import stat

MAX_LINKS = 40  # Linux's limit


def descriptor_of(path: str | os.PathLike) -> int | None:
    """The descriptor of this process that `path` names; None for any other path.

    The shell turns `<(command)` and `>(command)` into such names. Opening one again would start a
    file from its beginning, or truncate it, so callers duplicate the descriptor.
    """
    path = os.path.abspath(path)
    own = rf"/(?:dev|proc/(?:self|thread-self|{os.getpid()}))/fd/(\d+)"
    for _ in range(MAX_LINKS):
        found = re.fullmatch(own, path)
        if found:
            return int(found[1])
        try:
            link = os.readlink(path)
        except OSError:  # not a link, or another user's
            return None
        path = os.path.normpath(os.path.join(os.path.dirname(path), link))
    return None


def is_regular(path: str | os.PathLike) -> bool:
    """Whether `path` is a file that can be read again from its start, and be replaced."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and descriptor_of(path) is None
