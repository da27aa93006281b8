"""The bucket plan: batches of pairs of similar length, one pair a row, in few shapes."""

from __future__ import annotations

import numpy as np

from jaxformer.data.batching import (
    EMPTY_ROW,
    BatchLayout,
    BatchShape,
    PaddingEfficiency,
    Sides,
    check_budget,
    check_lengths,
    padding_efficiency,
    remember,
    rows_per_batch,
)
from jaxformer.data.shuffling import random_words


class BucketPlan:
    """Batches of pairs of similar length, one pair a row, in at most `num_buckets` shapes.

    Each pair appears exactly once an epoch. Buckets yield full batches, and leftover pairs move to
    the next longer bucket. Only the longest bucket may end with a batch that has empty rows.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted.
      tokens_per_batch: rows x length of the longer side at most, padding included.
      num_buckets: maximum number of shapes; fewer are used if more would not save padding.
      row_multiple: rows of every batch are a multiple of it (devices that split the rows).
      seed: random seed for shuffling.
      shuffle: new batches in a new order each epoch. False, for evaluation: a fixed order, and
        sentences too long for tokens_per_batch get row_multiple rows, as there are no gradients
        to store.
      chain: [k, 2] nested shapes (S, T) to use, of `best_chain`; None: the best for these lengths.

    Raises:
      InputError: tokens_per_batch is too small for row_multiple rows of the longest sentence.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        *,
        tokens_per_batch: int,
        num_buckets: int,
        row_multiple: int,
        seed: int,
        shuffle: bool = True,
        chain: np.ndarray | None = None,
    ):
        check_lengths(source_lengths, target_lengths)
        self._seed, self._shuffle = seed, shuffle
        self._tokens = int(source_lengths.sum()), int(target_lengths.sum())
        budget = tokens_per_batch, row_multiple
        if chain is None:
            ends = length_ends(source_lengths), length_ends(target_lengths)
            histogram = pair_histogram((source_lengths, target_lengths), ends)
            chain = best_chain(histogram[None], ends, num_buckets, *budget)
        if shuffle:
            check_budget(tokens_per_batch, int(chain[-1].max()), row_multiple)
        bucket = bucket_of(chain, source_lengths, target_lengths)
        self._shapes = cut_batches(chain, np.bincount(bucket, minlength=len(chain)), *budget)
        self._bucket = bucket.astype(np.uint8)  # num_buckets is 64 at most
        # One entry per batch: its shape and where its pairs start in the order of an epoch.
        # Leftover pairs lie just before those of the next bucket, so the starts never change.
        self._shape_of_batch = np.repeat(
            np.arange(len(self._shapes)), [s.batches_per_epoch for s in self._shapes]
        )
        batch_rows = np.array([s.rows for s in self._shapes])[self._shape_of_batch]
        self._start_of_batch = np.cumsum(batch_rows) - batch_rows
        self.steps_per_epoch = len(batch_rows)
        self._epoch = remember(self._draw_epoch, 2)

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Order of the pairs, bucket by bucket, and order of the batches."""
        if not self._shuffle:
            return np.argsort(self._bucket, kind="stable"), np.arange(self.steps_per_epoch)
        words = random_words(self._seed, (1, epoch), len(self._bucket) + self.steps_per_epoch)
        pair_words, batch_words = words[: len(self._bucket)], words[len(self._bucket) :]
        keys = (self._bucket.astype(np.uint64) << np.uint64(56)) | (pair_words >> np.uint64(8))
        return np.argsort(keys, kind="stable"), np.argsort(batch_words, kind="stable")

    def shapes(self) -> list[BatchShape]:
        """The shapes that occur, shortest first."""
        return [shape for shape in self._shapes if shape.batches_per_epoch]

    def padding_efficiency(self) -> PaddingEfficiency:
        """Tokens of an epoch over the cells of its batches."""
        return padding_efficiency(self._tokens, self._shapes)

    def shape(self, step: int) -> tuple[int, int, int]:
        """B, S and T of step n."""
        shape = self._shape_of(step)[1]
        return shape.rows, shape.source_length, shape.target_length

    def _shape_of(self, step: int) -> tuple[int, BatchShape]:
        """The index of step n's batch before shuffling, and its shape."""
        epoch, index = divmod(step, self.steps_per_epoch)
        batch = self._epoch(epoch)[1][index]
        return batch, self._shapes[self._shape_of_batch[batch]]

    def layout(self, step: int, row_slice: slice) -> BatchLayout:
        """Placement of the pairs of `row_slice` of step n."""
        batch, shape = self._shape_of(step)
        start = self._start_of_batch[batch]
        pairs = np.full(shape.rows, EMPTY_ROW, np.int64)
        filled = self._epoch(step // self.steps_per_epoch)[0][start : start + shape.rows]
        pairs[: len(filled)] = filled
        pairs = pairs[row_slice]
        rows = np.flatnonzero(pairs != EMPTY_ROW)
        starts = np.zeros(len(rows), np.int64)
        sizes = len(pairs), shape.source_length, shape.target_length
        return BatchLayout(pairs[rows], rows, starts, starts, None, sizes)


def length_ends(lengths: np.ndarray) -> np.ndarray:
    """Array lengths worth considering for sentences of these lengths: [K] ascending, K <= 48.

    Even up to 32 tokens, multiples of 4 up to 64 and of 8 above (coarser where a sentence is over
    256): short sentences lose most to rounding, and odd lengths exclude fused GPU attention.
    """
    longest = int(lengths.max())
    step = 8 * max(-(-(longest - 64) // 192), 1)
    ends = np.concatenate(
        [np.arange(2, 32, 2), np.arange(32, 64, 4), np.arange(64, longest + step, step)]
    )
    return ends[np.unique(np.searchsorted(ends, lengths))]


def bucket_chains(
    histogram: np.ndarray, source_ends: np.ndarray, target_ends: np.ndarray, num_buckets: int
) -> list[np.ndarray]:
    """For 1, 2, ... `num_buckets` buckets, the nested shapes (S, T) with the fewest cells.

    A pair belongs to the first shape of a chain that holds both its sides. Dynamic programming:
    best(k, b) = min over a inside b of best(k - 1, a) + (pairs(b) - pairs(a)) (S_b + T_b), where
    pairs(b) fit into shape b. Shapes are nested so that leftover pairs fit into the next bucket.

    Args:
      histogram: [K, L] pairs for each candidate source and target end.
      source_ends, target_ends: [K] and [L] ascending.

    Returns:
      [k or fewer, 2] shapes in ascending order for each k; the last one holds all pairs.
    """
    source = np.repeat(source_ends, len(target_ends))
    target = np.tile(target_ends, len(source_ends))
    fitting = histogram.cumsum(axis=0).cumsum(axis=1).ravel()
    cost = (fitting[None, :] - fitting[:, None]) * (source + target).astype(np.float64)
    cost[(source[None, :] < source[:, None]) | (target[None, :] < target[:, None])] = np.inf
    best, came_from = fitting * (source + target).astype(np.float64), []
    chains = []
    for _ in range(num_buckets):
        chain = [len(source) - 1]
        for table in reversed(came_from):
            chain.append(int(table[chain[-1]]))
        chains.append(np.unique(np.stack([source[chain], target[chain]], axis=1), axis=0))
        total = best[:, None] + cost
        came_from.append(total.argmin(axis=0))
        best = total.min(axis=0)
    return chains


def pair_histogram(lengths: Sides, ends: Sides) -> np.ndarray:
    """[K, L] int64 pairs whose sides round up to each source and target end."""
    source, target = (np.searchsorted(e, np.arange(e[-1] + 1)) for e in ends)
    cells = (source * len(ends[1]))[lengths[0]] + target[lengths[1]]
    shape = len(ends[0]), len(ends[1])
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)


def bucket_of(chain: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Index of the first shape of `chain` that holds both sides, for lengths or length ends.

    Args:
      chain: [k, 2] nested shapes (S, T), ascending.
      source, target: int tokens, of shapes that broadcast.
    """
    return np.maximum(np.searchsorted(chain[:, 0], source), np.searchsorted(chain[:, 1], target))


def bucket_totals(chain: np.ndarray, histograms: np.ndarray, ends: Sides) -> np.ndarray:
    """Count the pairs in each bucket.

    Args:
      chain: [k, 2] nested shapes (S, T), ascending.
      histograms: [W, K, L] from `pair_histogram`, one for each window.
      ends: the K source and the L target ends of the histograms.

    Returns:
      [W, k] pairs.
    """
    bucket = bucket_of(chain, ends[0][:, None], ends[1][None, :])
    return np.stack([histograms[:, bucket == b].sum(axis=1) for b in range(len(chain))], axis=1)


def best_chain(
    histograms: np.ndarray, ends: Sides, num_buckets: int, tokens_per_batch: int, row_multiple: int
) -> np.ndarray:
    """The one of `bucket_chains` whose batches have the fewest cells, empty rows included.

    Args:
      histograms: [W, K, L] from `pair_histogram`; each of the W windows has its own batches.
      ends: the K source and the L target ends of the histograms.
      num_buckets, tokens_per_batch, row_multiple: see `BucketPlan`.

    Returns:
      [k, 2] nested shapes (S, T), ascending; k <= num_buckets.
    """
    fewest, best = None, None
    for chain in bucket_chains(histograms.sum(axis=0), *ends, num_buckets):
        cells = 0
        for totals in bucket_totals(chain, histograms, ends):
            for source, target, *size in cut_batches(chain, totals, tokens_per_batch, row_multiple):
                cells += (source + target) * size[0] * size[1]
        if fewest is None or cells < fewest:
            fewest, best = cells, chain
    return best


def cut_batches(
    chain: np.ndarray, totals: np.ndarray, tokens_per_batch: int, row_multiple: int
) -> list[BatchShape]:
    """The shape of each bucket and the number of batches it fills in an epoch.

    Args:
      chain: [k, 2] nested shapes (S, T), ascending.
      totals: [k] pairs in each bucket.
      tokens_per_batch, row_multiple: see `BucketPlan`.
    """
    shapes, waiting = [], 0
    for number, ((source_length, target_length), total) in enumerate(
        zip(chain.tolist(), totals.tolist(), strict=True), 1
    ):
        rows = rows_per_batch(tokens_per_batch, max(source_length, target_length), row_multiple)
        waiting += total
        batches = waiting // rows if number < len(chain) else -(-waiting // rows)
        waiting -= batches * rows
        shapes.append(BatchShape(source_length, target_length, rows, batches))
    return shapes
