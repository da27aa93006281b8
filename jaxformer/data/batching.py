"""Which pairs make up the batch of step n: the contract of a plan.

The global batch of step n is a pure function of (lengths, settings, seed, n): a plan holds no
state between calls, so that a resumed run and a run on another number of processes see the same
batches.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxformer.errors import InputError

Sides = tuple[np.ndarray, np.ndarray]  # of the source and of the target
EMPTY_ROW = -1


class BatchShape(NamedTuple):
    """One shape that a step is compiled for."""

    source_length: int  # tokens, S
    target_length: int  # tokens, T
    rows: int  # B, over all processes
    batches_per_epoch: int


class PaddingEfficiency(NamedTuple):
    """Share of an epoch's array cells that hold a token, from 0 to 1."""

    source: float
    target: float
    both: float


class BatchLayout(NamedTuple):
    """Where the N pairs of one batch lie in its [B, S] and [B, T] arrays."""

    pairs: np.ndarray  # [N] index into the corpus
    rows: np.ndarray  # [N]
    source_starts: np.ndarray  # [N] first column
    target_starts: np.ndarray  # [N] first column
    segments: np.ndarray | None  # [N] from 1 in each row; None: one pair a row, not packed
    shape: tuple[int, int, int]  # B, S, T


class Plan(Protocol):
    """What `make_batch` and the loader need from a `BucketPlan` or a `PackedPlan`."""

    steps_per_epoch: int

    def shapes(self) -> list[BatchShape]: ...

    def padding_efficiency(self) -> PaddingEfficiency: ...

    def shape(self, step: int) -> tuple[int, int, int]: ...

    def layout(self, step: int, row_slice: slice) -> BatchLayout: ...


def remember(function: Callable[[int], Any], count: int) -> Callable[[int], Any]:
    """`function`, caching its last `count` results; one thread at a time computes."""
    cached, lock = functools.lru_cache(maxsize=count)(function), threading.Lock()

    def ask(index: int) -> Any:
        with lock:
            return cached(index)

    return ask


def rows_per_batch(tokens_per_batch: int, length: int, row_multiple: int) -> int:
    """Rows of `length` tokens in a batch: a multiple of `row_multiple`, and at least that.

    Args:
      tokens_per_batch: rows x length at most, unless `row_multiple` rows exceed it.
      length: tokens of a row.
      row_multiple: see `BucketPlan`.
    """
    return max(tokens_per_batch // length // row_multiple, 1) * row_multiple


def check_budget(tokens_per_batch: int, longest: int, row_multiple: int) -> None:
    """Check that a batch can hold the longest sentences.

    Args:
      tokens_per_batch: rows x length at most, padding included.
      longest: tokens of the longest row.
      row_multiple: the fewest rows of a batch.

    Raises:
      InputError: `row_multiple` rows of `longest` tokens exceed tokens_per_batch.
    """
    if tokens_per_batch < row_multiple * longest:
        raise InputError(
            f"data.tokens_per_batch={tokens_per_batch} is too small for {row_multiple} row(s) of "
            f"{longest} tokens, one for each device and each of optimizer.accumulation_steps; "
            f"raise it to at least {row_multiple * longest}, or lower data.max_length or the steps"
        )


def check_lengths(source_lengths: np.ndarray, target_lengths: np.ndarray) -> None:
    """Raise `InputError` unless both sides have the same number of lengths, not 0."""
    if len(source_lengths) != len(target_lengths) or not len(source_lengths):
        raise InputError(
            f"{len(source_lengths)} source and {len(target_lengths)} target sentences: a plan "
            "needs the same number of both, and at least one"
        )


def padding_efficiency(tokens: tuple[int, int], shapes: list[BatchShape]) -> PaddingEfficiency:
    """Share of the cells of an epoch's batches that `tokens` (source, target) fill."""
    rows = np.array([s.rows * s.batches_per_epoch for s in shapes])
    source_cells = int(rows @ np.array([s.source_length for s in shapes]))
    target_cells = int(rows @ np.array([s.target_length for s in shapes]))
    source, target = tokens
    return PaddingEfficiency(
        source / source_cells,
        target / target_cells,
        (source + target) / (source_cells + target_cells),
    )
