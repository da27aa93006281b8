"""Corpora larger than memory: contiguous windows, each planned when it is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from jaxformer.data.batching import (
    BatchLayout,
    BatchShape,
    PaddingEfficiency,
    Plan,
    check_budget,
    check_lengths,
    padding_efficiency,
    remember,
    rows_per_batch,
)
from jaxformer.data.buckets import (
    BucketPlan,
    best_chain,
    bucket_totals,
    cut_batches,
    length_ends,
    pair_histogram,
)
from jaxformer.data.packing import PackedPlan, check_row_length, pack_in_order
from jaxformer.data.shuffling import random_words

CHUNK_PAIRS = 1 << 20  # lengths read at a time
KEPT_WINDOWS = 2  # plans in memory, some tens of bytes per pair


class Lengths(Protocol):
    """Tokens of each sentence: an array, or what can be sliced like `SentenceLengths`."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> np.ndarray: ...


class Window(NamedTuple):
    """What is known about a window before it is planned."""

    first_pair: int
    shapes: list[BatchShape]


class LengthSurvey(NamedTuple):
    """Sums over a whole corpus, from one pass over its lengths in chunks."""

    tokens: tuple[int, int]  # source, target
    distinct: tuple[np.ndarray, np.ndarray]  # the lengths that occur, ascending


class WindowedPlan:
    """Batches of a corpus window by window, so that only a few windows are in memory.

    Each epoch visits every window once, in a new seeded order, and takes all batches of one before
    the next. A window has the same number of steps in every epoch, known before it is planned, so
    step n determines its window and the step within it without any state. Pairs are shuffled only
    within their window.

    Args:
      windows: in the order of the corpus.
      make_window: the plan of window number w; the same each time it is called.
      tokens: on the source and the target side of the corpus.
      seed: random seed for the order of the windows.
      shuffle: a new order of the windows each epoch; False keeps that of the corpus.
    """

    def __init__(
        self,
        windows: list[Window],
        make_window: Callable[[int], Plan],
        tokens: tuple[int, int],
        *,
        seed: int,
        shuffle: bool,
    ):
        self._windows, self._tokens = windows, tokens
        self._seed, self._shuffle = seed, shuffle
        self._steps = np.array([sum(s.batches_per_epoch for s in w.shapes) for w in windows])
        self.steps_per_epoch = int(self._steps.sum())
        self._plan = remember(make_window, KEPT_WINDOWS)
        self._epoch = remember(self._draw_epoch, 2)

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The windows in the order of an epoch, and the step of the epoch at which each ends."""
        order = np.arange(len(self._windows))
        if self._shuffle:
            order = np.argsort(random_words(self._seed, (2, epoch), len(order)), kind="stable")
        return order, np.cumsum(self._steps[order])

    def locate(self, step: int) -> tuple[int, int]:
        """Window of step n and the step in that window's plan."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order, ends = self._epoch(epoch)
        turn = np.searchsorted(ends, index, side="right")
        window = int(order[turn])
        steps = int(self._steps[window])
        return window, epoch * steps + index - (int(ends[turn]) - steps)

    def shapes(self) -> list[BatchShape]:
        """The shapes that occur in any window, shortest first."""
        return [shape for shape in self._all_shapes() if shape.batches_per_epoch]

    def _all_shapes(self) -> list[BatchShape]:
        return [
            same[0]._replace(batches_per_epoch=sum(shape.batches_per_epoch for shape in same))
            for same in zip(*(window.shapes for window in self._windows), strict=True)
        ]

    def padding_efficiency(self) -> PaddingEfficiency:
        """Tokens of an epoch over the cells of its batches."""
        return padding_efficiency(self._tokens, self._all_shapes())

    def shape(self, step: int) -> tuple[int, int, int]:
        """B, S and T of step n."""
        window, local_step = self.locate(step)
        return self._plan(window).shape(local_step)

    def layout(self, step: int, row_slice: slice) -> BatchLayout:
        """Placement of the pairs of `row_slice` of step n."""
        window, local_step = self.locate(step)
        layout = self._plan(window).layout(local_step, row_slice)
        return layout._replace(pairs=layout.pairs + self._windows[window].first_pair)


def plan_buckets_in_windows(
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    window_pairs: int,
    tokens_per_batch: int,
    num_buckets: int,
    row_multiple: int,
    seed: int,
    shuffle: bool = True,
) -> WindowedPlan:
    """A `BucketPlan` for each window; all share the best shapes for the whole corpus.

    The lengths are read twice, chunk by chunk: 100 million pairs take some seconds.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted; only slices of them are read.
      window_pairs: pairs of a window at most.
      tokens_per_batch, num_buckets, row_multiple, seed, shuffle: see `BucketPlan`.

    Raises:
      InputError: tokens_per_batch is too small for row_multiple rows of the longest sentence.
    """
    lengths = source_lengths, target_lengths
    survey = survey_lengths(*lengths)
    bounds = window_bounds(len(source_lengths), window_pairs)
    ends = length_ends(survey.distinct[0]), length_ends(survey.distinct[1])
    histograms = np.stack(
        [
            sum(pair_histogram(chunk, ends) for chunk in chunks(*lengths, low, high))
            for low, high in bounds
        ]
    )
    chain = best_chain(histograms, ends, num_buckets, tokens_per_batch, row_multiple)
    totals = bucket_totals(chain, histograms, ends)
    windows = [
        Window(low, cut_batches(chain, totals[w], tokens_per_batch, row_multiple))
        for w, (low, _) in enumerate(bounds)
    ]
    settings = {
        "tokens_per_batch": tokens_per_batch,
        "num_buckets": num_buckets,
        "row_multiple": row_multiple,
        "shuffle": shuffle,
        "chain": chain,
    }
    if shuffle:
        check_budget(tokens_per_batch, int(chain[-1].max()), row_multiple)

    def make_window(window: int) -> BucketPlan:
        part = slice(*bounds[window])
        return BucketPlan(
            source_lengths[part], target_lengths[part], seed=window_seed(seed, window), **settings
        )

    return WindowedPlan(windows, make_window, survey.tokens, seed=seed, shuffle=shuffle)


def plan_packed_in_windows(
    source_lengths: Lengths,
    target_lengths: Lengths,
    *,
    window_pairs: int,
    row_length: int,
    tokens_per_batch: int,
    row_multiple: int,
    seed: int,
    shuffle: bool = True,
) -> WindowedPlan:
    """A `PackedPlan` for each window; the batches of all have one shape.

    Only packing shows how many rows a window fills, and so its steps. Each window is packed here,
    only the count is kept, and the window is packed again when it is reached.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted; only slices of them are read.
      window_pairs: pairs of a window at most.
      row_length, tokens_per_batch, row_multiple, seed, shuffle: see `PackedPlan`.

    Raises:
      InputError: a pair is longer than a row, or tokens_per_batch too small for row_multiple rows.
    """
    survey = survey_lengths(source_lengths, target_lengths)
    check_row_length(int(max(distinct[-1] for distinct in survey.distinct)), row_length)
    check_budget(tokens_per_batch, row_length, row_multiple)
    bounds = window_bounds(len(source_lengths), window_pairs)
    batch_rows = rows_per_batch(tokens_per_batch, row_length, row_multiple)
    windows = []
    for window, (low, high) in enumerate(bounds):
        lengths = source_lengths[low:high], target_lengths[low:high]
        row_of_pair = pack_in_order(*lengths, row_length, window_seed(seed, window))[1]
        rows = int(row_of_pair.max()) + 1
        shape = BatchShape(row_length, row_length, batch_rows, -(-rows // batch_rows))
        windows.append(Window(low, [shape]))
    settings = {
        "row_length": row_length,
        "tokens_per_batch": tokens_per_batch,
        "row_multiple": row_multiple,
        "shuffle": shuffle,
    }

    def make_window(window: int) -> PackedPlan:
        part = slice(*bounds[window])
        return PackedPlan(
            source_lengths[part], target_lengths[part], seed=window_seed(seed, window), **settings
        )

    return WindowedPlan(windows, make_window, survey.tokens, seed=seed, shuffle=shuffle)


def window_bounds(count: int, window_pairs: int) -> list[tuple[int, int]]:
    """First and past-the-last pair of the fewest equal windows of at most `window_pairs`."""
    number = -(-count // window_pairs)
    ends = [count * window // number for window in range(number + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))


def window_seed(seed: int, window: int) -> int:
    """Seed of a window's plan: each window is shuffled differently."""
    return int(random_words(seed, (3, window), 1)[0])


def chunks(
    source_lengths: Lengths, target_lengths: Lengths, low: int, high: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over the lengths of a range of pairs, at most CHUNK_PAIRS at a time.

    Args:
      source_lengths, target_lengths: [N] int32 tokens, EOS counted; only slices of them are read.
      low, high: first and past-the-last pair.

    Yields:
      [n] int32 source and target lengths.
    """
    for start in range(low, high, CHUNK_PAIRS):
        part = slice(start, min(start + CHUNK_PAIRS, high))
        yield source_lengths[part], target_lengths[part]


def survey_lengths(source_lengths: Lengths, target_lengths: Lengths) -> LengthSurvey:
    """Read all lengths once; `InputError` unless both sides have the same number, not 0."""
    check_lengths(source_lengths, target_lengths)
    counts = [np.zeros(1, np.int64), np.zeros(1, np.int64)]
    for chunk in chunks(source_lengths, target_lengths, 0, len(source_lengths)):
        for side, lengths in enumerate(chunk):
            more = np.bincount(lengths, minlength=len(counts[side]))
            more[: len(counts[side])] += counts[side]
            counts[side] = more
    source, target = counts
    return LengthSurvey(
        (int(source @ np.arange(len(source))), int(target @ np.arange(len(target)))),
        (np.flatnonzero(source), np.flatnonzero(target)),
    )
