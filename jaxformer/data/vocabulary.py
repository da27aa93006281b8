"""What a checkpoint records about a vocabulary of its model."""

from __future__ import annotations

from typing import NamedTuple


class Vocabulary(NamedTuple):
    """The pieces of a tokenizer, or the names of the classes.

    Attributes:
      file: its name in the workdir.
      size: number of entries.
      fingerprint: hex digest of the entries in their order.
    """

    file: str
    size: int
    fingerprint: str
