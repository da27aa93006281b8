"""Tokenised sentence pairs as a dataset: which pairs at which step, and their arrays."""

from __future__ import annotations

import functools

import numpy as np

from jaxformer.config import DataConfig
from jaxformer.data.batching import BatchShape, Plan
from jaxformer.data.buckets import BucketPlan
from jaxformer.data.corpus import SentenceLengths, TokenizedCorpus
from jaxformer.data.dataset import ArraySpec, Batch, BatchSpec, Dataset
from jaxformer.data.packing import PackedPlan
from jaxformer.data.row_padding import RowPadding
from jaxformer.data.sampling_workers import SamplingWorkers
from jaxformer.data.subword_sampling import Sentences, SubwordSampler, sampled_starts
from jaxformer.data.windows import plan_buckets_in_windows, plan_packed_in_windows
from jaxformer.parallel.shares import WHOLE_BATCH, BatchShare

SIDES = ("inputs", "targets")  # the arrays of a batch: source ids and target ids
PACKED_PARTS = ("", "_segments", "_positions")  # arrays of a side of packed rows


def pair_spec(shape: BatchShape, *, packed: bool) -> BatchSpec:
    """The arrays of a batch of pairs: int32, `inputs` [B, S] and `targets` [B, T].

    Args:
      shape: shape of the batch.
      packed: several pairs a row; adds `inputs_segments`, `inputs_positions` and those of the
        targets.
    """
    lengths = shape.source_length, shape.target_length
    return {
        side + part: ArraySpec((shape.rows, length))
        for side, length in zip(SIDES, lengths, strict=True)
        for part in (PACKED_PARTS if packed else PACKED_PARTS[:1])
    }


class PairDataset(Dataset):
    """The batches of a tokenised corpus.

    Args:
      corpus: the tokenised pairs.
      plan: from `make_plan`, over the lengths of `corpus`.
      pad_id: fills the arrays behind the tokens.
      packed: the plan packs several pairs into a row.
      sampler: draws a new segmentation of each sentence; the plan must be made for it.
      workers: processes that run the sampler; 0: the reading thread.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        plan: Plan,
        pad_id: int,
        *,
        packed: bool = False,
        sampler: SubwordSampler | None = None,
        workers: int = 0,
    ):
        self.corpus, self.plan, self.sampler = corpus, plan, sampler
        self.pad_id, self.packed = pad_id, packed
        self._num_workers = workers if sampler else 0
        self._workers: SamplingWorkers | None = None
        self.steps_per_epoch = plan.steps_per_epoch
        self.num_readers = max(self._num_workers, 1)

    def specs(self) -> list[BatchSpec]:
        return [pair_spec(shape, packed=self.packed) for shape in self.plan.shapes()]

    def batch(self, step: int, share: BatchShare = WHOLE_BATCH) -> Batch:
        parts = [
            make_batch(self.corpus, self.plan, step, rows, self.pad_id, self.sampler, self._workers)
            for rows in share.slices(self.plan.shape(step)[0])
        ]
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def open(self) -> None:
        if self._num_workers and self._workers is None:
            self._workers = SamplingWorkers(self.sampler, self._num_workers)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def make_plan(
    corpus: TokenizedCorpus,
    config: DataConfig,
    *,
    seed: int,
    row_multiple: int,
    shuffle: bool,
    sampler: SubwordSampler | None = None,
) -> Plan:
    """The plan that `data.batching` names, over the lengths of `corpus`; `auto` means buckets.

    More than data.window_pairs pairs are planned window by window, see `WindowedPlan`.
    Evaluation (`shuffle=False`) is always planned in buckets: it keeps sentences over
    data.max_length untruncated, which fit into no packed row.

    Args:
      corpus: the tokenised pairs.
      config: data configuration.
      seed: random seed for shuffling.
      row_multiple: rows of every batch are a multiple of it.
      shuffle: True: training; False: evaluation.
      sampler: the plan leaves room for the longer sentences that it draws; None: no sampling.

    Raises:
      InputError: data.tokens_per_batch is too small for `row_multiple` rows.
    """
    lengths = []
    for side, offsets in enumerate((corpus.source_offsets, corpus.target_offsets)):
        change = sampler and functools.partial(sampler.planned_lengths, side)
        lengths.append(SentenceLengths(offsets, change))
    settings = {
        "tokens_per_batch": config.tokens_per_batch,
        "row_multiple": row_multiple,
        "seed": seed,
        "shuffle": shuffle,
    }
    packed = config.batching == "packed" and shuffle
    settings |= {"row_length": config.max_length} if packed else {"num_buckets": config.num_buckets}
    if len(corpus) > config.window_pairs:
        plan_in_windows = plan_packed_in_windows if packed else plan_buckets_in_windows
        return plan_in_windows(*lengths, window_pairs=config.window_pairs, **settings)
    plan = PackedPlan if packed else BucketPlan
    return plan(*(side[:] for side in lengths), **settings)


def plan_summary(plan: Plan, sampler: SubwordSampler | None = None) -> str:
    """Table of the compiled shapes and the share of tokens in them, for the log.

    A plan made for a `sampler` counts reserved tokens; the table shows the average share that
    sampled sentences fill.
    """
    lines = [f"{'source':>8}{'target':>8}{'rows':>8}{'batches/epoch':>15}"]
    lines += [
        f"{shape[0]:>8,}{shape[1]:>8,}{shape[2]:>8,}{shape[3]:>15,}" for shape in plan.shapes()
    ]
    source, target, both = plan.padding_efficiency()
    if sampler is not None:
        source, target = source * sampler.fill[0], target * sampler.fill[1]
        rows = [shape.rows * shape.batches_per_epoch for shape in plan.shapes()]
        widths = [(shape.source_length, shape.target_length) for shape in plan.shapes()]
        cells = np.array(rows) @ np.array(widths)
        both = float(np.array([source, target]) @ cells / cells.sum())
        lines.append(sampler.describe())
    lines.append(
        f"{plan.steps_per_epoch:,} steps an epoch; tokens fill {both:.1%} of the batches "
        f"(source {source:.1%}, target {target:.1%})"
    )
    return "\n".join(lines)


def make_batch(
    corpus: TokenizedCorpus,
    plan: Plan,
    step: int,
    row_slice: slice,
    pad_id: int,
    sampler: SubwordSampler | None = None,
    workers: SamplingWorkers | None = None,
) -> Batch:
    """Arrays of the rows `row_slice` of the global batch of step n.

    Args:
      corpus: the tokenised pairs.
      plan: over the lengths of `corpus`.
      step: n.
      row_slice: slice of the rows of the global batch.
      pad_id: fills the arrays behind the tokens.
      sampler: draws a new segmentation of each sentence; the plan must be made for it.
      workers: processes that run the sampler; None: this thread.

    Returns:
      int32 `inputs` [B, S] and `targets` [B, T]: ids that end in EOS, then `pad_id`. A packed
      plan adds `inputs_segments`, `inputs_positions`, `targets_segments` and
      `targets_positions`: segments count from 1 in each row, 0 is padding, and positions restart
      at 0 in each segment.
    """
    layout = plan.layout(step, row_slice)
    rows, *widths = layout.shape
    sides = stored_sentences(corpus, layout.pairs)
    starts = layout.source_starts, layout.target_starts
    if sampler is not None:
        sides = (workers or sampler).run(sampler.tasks(layout, sides, step))
        starts = [sampled_starts(layout.rows, sentences.lengths) for sentences in sides]
    batch: Batch = {}
    for side, name in enumerate(SIDES):
        ids, lengths = sides[side][:2]
        before = np.cumsum(lengths) - lengths
        token = np.arange(len(ids))
        columns = layout.rows * widths[side] + starts[side]
        write_at = token + np.repeat(columns - before, lengths)
        batch[name] = scatter(rows, widths[side], write_at, ids, pad_id)
        if layout.segments is not None:
            segments = np.repeat(layout.segments, lengths)
            positions = token - np.repeat(before, lengths)
            batch[f"{name}_segments"] = scatter(rows, widths[side], write_at, segments, 0)
            batch[f"{name}_positions"] = scatter(rows, widths[side], write_at, positions, 0)
    return batch


def stored_sentences(corpus: TokenizedCorpus, pairs: np.ndarray) -> tuple[Sentences, Sentences]:
    """Source and target of `pairs`, [N], as stored in the corpus."""
    sides = []
    for ids, offsets in (
        (corpus.source_ids, corpus.source_offsets),
        (corpus.target_ids, corpus.target_offsets),
    ):
        first = offsets[pairs]
        lengths = offsets[pairs + 1] - first
        before = np.cumsum(lengths) - lengths
        read_at = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
        sides.append(Sentences(ids[read_at], lengths))
    return sides[0], sides[1]


def scatter(rows: int, width: int, where: np.ndarray, values: np.ndarray, fill: int) -> np.ndarray:
    """Write values into a filled array.

    Args:
      rows, width: shape of the result.
      where: [N] int64 flat positions.
      values: [N] integers.
      fill: value of all other cells.

    Returns:
      [rows, width] int32.
    """
    cells = np.full(rows * width, fill, np.int32)
    cells[where] = values
    return cells.reshape(rows, width)


def plan_batches(
    corpus: TokenizedCorpus,
    config: DataConfig,
    *,
    seed: int,
    sampler: SubwordSampler | None,
    planned_rows: int,
    row_multiple: int,
) -> Plan:
    """The plan of a run, whose rows come in multiples of `planned_rows`.

    If the devices cannot split them evenly, empty rows fill up to a multiple of `row_multiple`.

    Args:
      corpus: tokenised pairs to train on.
      config: data configuration.
      seed: random seed for shuffling.
      sampler: None: sentences keep their stored segmentation.
      planned_rows: row multiple of the devices that the run began on.
      row_multiple: that of the current devices.
    """
    plan = make_plan(
        corpus, config, seed=seed, row_multiple=planned_rows, shuffle=True, sampler=sampler
    )
    return RowPadding(plan, row_multiple) if planned_rows % row_multiple else plan
