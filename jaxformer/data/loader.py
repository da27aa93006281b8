"""From a tokenised corpus to a stream of ready batches, read ahead of the train step."""

from __future__ import annotations

import functools
import sys
from typing import NamedTuple

import numpy as np

from jaxformer.config import DataConfig
from jaxformer.data.batching import Batch, BucketPlan, Plan
from jaxformer.data.corpus import SentenceLengths, TokenizedCorpus
from jaxformer.data.packing import PackedPlan
from jaxformer.data.sampling_workers import SamplingWorkers
from jaxformer.data.subword_sampling import (
    DRAWS,
    Sentences,
    SubwordSampler,
    sampled_starts,
)
from jaxformer.data.windows import plan_buckets_in_windows, plan_packed_in_windows
from jaxformer.errors import InputError
from jaxformer.parallel.shares import WHOLE_BATCH, BatchShare

READ_AHEAD = 4  # batches at least; two for each worker


def make_plan(
    corpus: TokenizedCorpus,
    config: DataConfig,
    *,
    seed: int,
    row_multiple: int,
    shuffle: bool,
    sampler: SubwordSampler | None = None,
) -> Plan:
    """The plan that `data.batching` names, over the lengths of `corpus`; `auto` here: buckets.

    More than data.window_pairs pairs are planned window by window, see `WindowedPlan`.
    Evaluation (`shuffle=False`) is always planned in buckets: it keeps sentences over
    data.max_length whole, which fit into no packed row. With a `sampler` the plan reckons with the
    longer sentences that it makes.

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

    A plan made for a `sampler` counts the tokens it reserves; the share of them that sentences take
    on average once they are sampled is what is shown.
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
      corpus, plan: what to take, from where.
      step: n.
      row_slice: of the rows of the global batch.
      pad_id: fills the arrays behind the tokens.
      sampler: segments each sentence anew; the plan must have been made for it.
      workers: where the sampler's work is done; None: here.

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
    for side, name in enumerate(("inputs", "targets")):
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


def make_share(
    corpus: TokenizedCorpus, plan: Plan, step: int, row_slices: list[slice], pad_id: int, *sampling
) -> Batch:
    """`make_batch` of several slices of the rows, one below the other."""
    parts = [make_batch(corpus, plan, step, rows, pad_id, *sampling) for rows in row_slices]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def stored_sentences(corpus: TokenizedCorpus, pairs: np.ndarray) -> tuple[Sentences, Sentences]:
    """Source and target of `pairs`, [N], as the corpus has them."""
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
    """[rows, width] int32 of `fill` with `values` at the flat positions `where`."""
    cells = np.full(rows * width, fill, np.int32)
    cells[where] = values
    return cells.reshape(rows, width)


class SamplingShares(NamedTuple):
    """What became of the sentences of some batches, and how full these are."""

    redrawn: float  # share of sentences whose first draw did not fit
    stored: float  # share of sentences that kept their stored segmentation, as no draw fitted
    filled: float  # share of the cells of both sides that hold a token


def sampling_shares(
    corpus: TokenizedCorpus, plan: Plan, sampler: SubwordSampler, steps: range
) -> SamplingShares:
    """How often the room of `plan` was too small in the batches of `steps`."""
    sentences = redrawn = stored = tokens = cells = 0
    for step in steps:
        layout = plan.layout(step, slice(None))
        sides = stored_sentences(corpus, layout.pairs)
        for side in sampler.run(sampler.tasks(layout, sides, step)):
            sentences += len(side.draws)
            redrawn += int((side.draws > 0).sum())
            stored += int((side.draws == DRAWS).sum())
            tokens += len(side.ids)
        rows, source_length, target_length = layout.shape
        cells += rows * (source_length + target_length)
    return SamplingShares(redrawn / sentences, stored / sentences, tokens / cells)


class StepSource:
    """Random access to the batches from `start_step` on; element i is step start_step + i."""

    def __init__(
        self,
        corpus: TokenizedCorpus,
        plan: Plan,
        pad_id: int,
        share: BatchShare,
        start_step: int,
        sampler: SubwordSampler | None,
        workers: SamplingWorkers | None,
    ):
        self._corpus, self._plan, self._pad_id, self._share = corpus, plan, pad_id, share
        self._start_step, self._sampler, self._workers = start_step, sampler, workers

    def __len__(self) -> int:
        return sys.maxsize - self._start_step

    def __getitem__(self, index: int) -> Batch:
        step = self._start_step + int(index)
        rows = len(self._plan.rows(step)[0])
        return make_share(
            self._corpus,
            self._plan,
            step,
            self._share.slices(rows),
            self._pad_id,
            self._sampler,
            self._workers,
        )


class BatchLoader:
    """Endless iterator over this process's rows of the batches of step start_step, + 1, ...

    Its whole state is `step`: a new loader with `start_step=step` goes on with the same batches,
    on any number of processes. One thread of Grain makes the batches ahead of use; with workers
    there is one thread for each.

    Args:
      corpus: the tokenised pairs.
      plan: from `make_plan`, over the lengths of `corpus`.
      pad_id: fills the arrays behind the tokens.
      share: the rows of each batch that this process takes.
      start_step: first step to deliver.
      sampler: segments each sentence anew; the plan must have been made for it. None: never.
      workers: processes that do the sampler's work; 0: the reading thread does it.

    Raises:
      InputError: the rows of a batch cannot be shared equally by the processes.
      RuntimeError: from `next`, if a worker failed or ended.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        plan: Plan,
        *,
        pad_id: int,
        share: BatchShare = WHOLE_BATCH,
        start_step: int = 0,
        sampler: SubwordSampler | None = None,
        workers: int = 0,
    ):
        import grain

        for shape in plan.shapes():
            if shape.rows % share.parts:
                raise InputError(
                    f"a batch of {shape.rows} rows cannot be cut into {share.parts} parts; plan it "
                    f"with a row_multiple that {share.parts} divides"
                )
        self.step = self._start_step = start_step
        self._workers = SamplingWorkers(sampler, workers) if sampler and workers else None
        source = StepSource(corpus, plan, pad_id, share, start_step, sampler, self._workers)
        options = grain.ReadOptions(
            num_threads=max(workers, 1) if sampler else 1,
            prefetch_buffer_size=max(READ_AHEAD, 2 * workers),
        )
        self._batches = iter(grain.MapDataset.source(source).to_iter_dataset(options))

    def __iter__(self) -> BatchLoader:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self.step += 1
        return batch

    def seek(self, step: int) -> None:
        """Deliver the batch of `step` next; not one before `start_step`."""
        self._batches.set_state({"next_index": step - self._start_step})
        self.step = step

    def close(self) -> None:
        """End the reading threads and the workers; the loader cannot be used afterwards."""
        self._batches.close()
        if self._workers is not None:
            self._workers.close()
