"""Corpora larger than memory: contiguous windows, each planned when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from jaxformer.data.batching import (
    EMPTY_ROW,
    BatchLayout,
    BatchShape,
    BucketPlan,
    PaddingEfficiency,
    Plan,
    best_chain,
    bucket_totals,
    check_budget,
    check_lengths,
    cut_batches,
    length_ends,
    padding_efficiency,
    pair_histogram,
    random_words,
    remember,
    rows_per_batch,
)
from jaxformer.data.packing import PackedPlan, check_row_length, pack_in_order

CHUNK_PAIRS = 1 << 20  # lengths looked at together
KEPT_WINDOWS = 2  # plans in memory, of some tens of bytes a pair


class Lengths(Protocol):
    """Tokens of each sentence: an array, or what reads slices of one, such as `SentenceLengths`."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> np.ndarray: ...


class Window(NamedTuple):
    """What is known of a window before it is planned."""

    first_pair: int
    first_row: int  # added to the rows of its plan, so that no two windows name the same row
    shapes: list[BatchShape]


class LengthSurvey(NamedTuple):
    """Sums over a whole corpus, from reading its lengths once chunk by chunk."""

    tokens: tuple[int, int]  # source, target
    distinct: tuple[np.ndarray, np.ndarray]  # the lengths that occur, ascending


class WindowedPlan:
    """Batches of a corpus window by window, so that few windows are ever in memory.

    Each epoch visits every window once, in a new seeded order, and takes all batches of one before
    the next. A window has the same number of steps in every epoch, known before it is planned; so
    step n leads to its window and the step in it without any state. Pairs are shuffled with those
    of their own window only.

    Args:
      windows: in the order of the corpus.
      make_window: the plan of window number w; the same each time it is called.
      tokens: of the source and the target side of the corpus.
      seed: of the order of the windows.
      shuffle: another order of the windows each epoch; False keeps that of the corpus.
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
        """Window of step n and the step of that window's own plan."""
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

    def rows(self, step: int) -> tuple[np.ndarray, int, int]:
        """What each row of step n holds, [B] with -1 for an empty row, and the lengths S and T."""
        window, local_step = self.locate(step)
        rows, source_length, target_length = self._plan(window).rows(local_step)
        shifted = np.where(rows == EMPTY_ROW, rows, rows + self._windows[window].first_row)
        return shifted, source_length, target_length

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
    """A `BucketPlan` for each window; all have the shapes that suit the whole corpus best.

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
        Window(low, low, cut_batches(chain, totals[w], tokens_per_batch, row_multiple))
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

    How many rows a window fills, and so its steps, is known only once it is packed. So each is
    packed here and only the count is kept; it is packed again when its turn comes.

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
    windows, first_row = [], 0
    for window, (low, high) in enumerate(bounds):
        lengths = source_lengths[low:high], target_lengths[low:high]
        row_of_pair = pack_in_order(*lengths, row_length, window_seed(seed, window))[1]
        rows = int(row_of_pair.max()) + 1
        shape = BatchShape(row_length, row_length, batch_rows, -(-rows // batch_rows))
        windows.append(Window(low, first_row, [shape]))
        first_row += rows
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
    """First and past-the-last pair of the fewest windows of at most `window_pairs`, all alike."""
    number = -(-count // window_pairs)
    ends = [count * window // number for window in range(number + 1)]
    return list(zip(ends[:-1], ends[1:], strict=True))


def window_seed(seed: int, window: int) -> int:
    """Seed of a window's plan, so that no two windows are shuffled alike."""
    return int(random_words(seed, (3, window), 1)[0])


def chunks(
    source_lengths: Lengths, target_lengths: Lengths, low: int, high: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The lengths of the pairs from `low` to `high`, at most CHUNK_PAIRS at a time."""
    for start in range(low, high, CHUNK_PAIRS):
        part = slice(start, min(start + CHUNK_PAIRS, high))
        yield source_lengths[part], target_lengths[part]


def survey_lengths(source_lengths: Lengths, target_lengths: Lengths) -> LengthSurvey:
    """Read all lengths once; `InputError` unless there are as many of both, and at least one."""
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
