"""Types of flags that name files, by which the tests find every file a command touches."""

from __future__ import annotations


class InputName(str):
    """A file, a pipe or a device to read, opened by `files.inputs`."""


class OutputName(str):
    """A file, a pipe or a device to write, opened by `files.outputs`."""
