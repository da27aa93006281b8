"""Several pairs in one row of fixed length: the packed plan of batches."""

from __future__ import annotations

import numpy as np

from jaxformer.data.batching import (
    EMPTY_ROW,
    BatchLayout,
    BatchShape,
    PaddingEfficiency,
    check_budget,
    check_lengths,
    padding_efficiency,
    remember,
    rows_per_batch,
)
from jaxformer.data.shuffling import random_words
from jaxformer.errors import InputError

OPEN_ROWS = 16  # rows a lane may still add to; more of them pack tighter and slower
PAIRS_PER_LANE = 4096  # lanes pack in parallel; each leaves a last row or two half full
MAX_LANES = 1024


class PackedPlan:
    """Batches of rows that hold several pairs each, all of one shape [B, row_length].

    Pairs are put into rows once, in a seeded order; each epoch then shuffles the rows. Every epoch
    thus has the same number of steps and contains every pair exactly once.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted.
      row_length: S and T, tokens.
      tokens_per_batch: rows x row_length at most, padding included.
      row_multiple: rows of the batch are a multiple of it (devices that split the rows).
      seed: random seed for the order of packing and for shuffling.
      shuffle: a new order of the rows each epoch; False keeps one order.

    Raises:
      InputError: a pair is longer than a row, or tokens_per_batch too small for row_multiple rows.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        row_length: int,
        tokens_per_batch: int,
        row_multiple: int,
        seed: int,
        shuffle: bool = True,
    ):
        check_lengths(source_lengths, target_lengths)
        check_row_length(int(max(source_lengths.max(), target_lengths.max())), row_length)
        self._seed, self._shuffle, self._row_length = seed, shuffle, row_length
        self._tokens = int(source_lengths.sum()), int(target_lengths.sum())
        check_budget(tokens_per_batch, row_length, row_multiple)
        self._batch_rows = rows_per_batch(tokens_per_batch, row_length, row_multiple)

        order, row_of_pair = pack_in_order(source_lengths, target_lengths, row_length, seed)
        by_row = np.argsort(row_of_pair, kind="stable")
        self._pairs = order[by_row]
        self._row_offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of_pair))])
        row_sizes = np.diff(self._row_offsets)
        first = np.repeat(self._row_offsets[:-1], row_sizes)
        self._segments = np.arange(len(order)) - first + 1
        self._source_starts = starts_in_row(source_lengths[self._pairs], first)
        self._target_starts = starts_in_row(target_lengths[self._pairs], first)
        self.steps_per_epoch = -(-len(row_sizes) // self._batch_rows)
        self._epoch = remember(self._draw_epoch, 2)

    def _draw_epoch(self, epoch: int) -> np.ndarray:
        """Order of the rows, -1 for the empty rows that fill the last batch."""
        order = np.full(self.steps_per_epoch * self._batch_rows, EMPTY_ROW, np.int64)
        rows = np.arange(len(self._row_offsets) - 1)
        if self._shuffle:
            rows = np.argsort(random_words(self._seed, (1, epoch), len(rows)), kind="stable")
        order[: len(rows)] = rows
        return order

    def shapes(self) -> list[BatchShape]:
        """The one shape of every batch."""
        length = self._row_length
        return [BatchShape(length, length, self._batch_rows, self.steps_per_epoch)]

    def padding_efficiency(self) -> PaddingEfficiency:
        """Tokens of an epoch over the cells of its batches."""
        return padding_efficiency(self._tokens, self.shapes())

    def shape(self, step: int) -> tuple[int, int, int]:
        """B, S and T of step n."""
        return self._batch_rows, self._row_length, self._row_length

    def layout(self, step: int, row_slice: slice) -> BatchLayout:
        """Placement of the pairs of `row_slice` of step n."""
        epoch, index = divmod(step, self.steps_per_epoch)
        batch = slice(index * self._batch_rows, (index + 1) * self._batch_rows)
        packed = self._epoch(epoch)[batch]
        packed = packed[row_slice]
        filled = np.flatnonzero(packed != EMPTY_ROW)
        first = self._row_offsets[packed[filled]]
        sizes = self._row_offsets[packed[filled] + 1] - first
        before = np.cumsum(sizes) - sizes
        slots = np.arange(sizes.sum()) + np.repeat(first - before, sizes)
        return BatchLayout(
            self._pairs[slots],
            np.repeat(filled, sizes),
            self._source_starts[slots],
            self._target_starts[slots],
            self._segments[slots],
            (len(packed), self._row_length, self._row_length),
        )


def check_row_length(longest: int, row_length: int) -> None:
    """Raise `InputError` if a sentence of `longest` tokens does not fit into a row."""
    if longest > row_length:
        raise InputError(
            f"data.max_length={row_length}: a sentence of {longest} tokens does not fit into "
            f"a packed row; raise it to {longest}, or use data.batching='buckets'"
        )


def pack_in_order(
    source_lengths: np.ndarray, target_lengths: np.ndarray, row_length: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The seeded order in which the pairs are packed, and the row that each gets.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted.
      row_length: tokens.
      seed: random seed for the order.

    Returns:
      [N] int64 indices of the pairs in packing order, and [N] int64 rows in the same order.
    """
    order = np.argsort(random_words(seed, (0,), len(source_lengths)), kind="stable")
    return order, pack_rows(source_lengths[order], target_lengths[order], row_length)


def starts_in_row(lengths: np.ndarray, first: np.ndarray) -> np.ndarray:
    """First column of each pair; `first` is the index of the first pair in its row."""
    before = np.cumsum(lengths, dtype=np.int64) - lengths
    return before - before[first]


def pack_rows(
    source_lengths: np.ndarray, target_lengths: np.ndarray, row_length: int
) -> np.ndarray:
    """Row of each pair, so that neither side of a row is longer than `row_length`.

    The pairs are dealt to lanes that pack in parallel, with one array operation for all lanes.
    Each lane puts its next pair into its fullest open row with room on both sides; if there is
    none, a new row replaces the fullest one.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted, none above `row_length`.
      row_length: tokens.

    Returns:
      [N] int64 row numbers, 0 to the number of rows - 1.
    """
    count = len(source_lengths)
    lanes = min(max(count // PAIRS_PER_LANE, 1), MAX_LANES)
    steps = -(-count // lanes)
    # Pairs of length 0 fill the last step; they fit anywhere and are dropped again.
    lengths = np.zeros((steps * lanes, 2), np.int32)
    lengths[:count, 0], lengths[:count, 1] = source_lengths, target_lengths
    lengths = lengths.reshape(steps, lanes, 2)

    room = np.full((lanes, OPEN_ROWS, 2), row_length, np.int32)
    names = np.arange(lanes * OPEN_ROWS).reshape(lanes, OPEN_ROWS)
    next_name = lanes * OPEN_ROWS
    row_of_pair = np.empty((steps, lanes), np.int64)
    lane = np.arange(lanes)
    no_room = np.int32(2 * row_length + 1)
    for step in range(steps):
        need = lengths[step]
        slack = room[:, :, 0] + room[:, :, 1]
        fits = (room[:, :, 0] >= need[:, :1]) & (room[:, :, 1] >= need[:, 1:])
        chosen = np.where(fits, slack, no_room).argmin(axis=1)
        full = lane[~fits[lane, chosen]]
        if len(full):
            fullest = slack[full].argmin(axis=1)
            chosen[full] = fullest
            room[full, fullest] = row_length
            names[full, fullest] = np.arange(next_name, next_name + len(full))
            next_name += len(full)
        room[lane, chosen] -= need
        row_of_pair[step] = names[lane, chosen]
    # Names count opened rows; rows that stayed empty get no number.
    row_of_pair = row_of_pair.reshape(-1)[:count]
    holds_pairs = np.zeros(next_name, bool)
    holds_pairs[row_of_pair] = True
    return (np.cumsum(holds_pairs) - 1)[row_of_pair]
