"""From a tokenised corpus to a stream of ready batches, read ahead of the train step."""

from __future__ import annotations

import sys

import numpy as np

from jaxformer.config import DataConfig
from jaxformer.data.batching import Batch, BucketPlan, Plan
from jaxformer.data.corpus import TokenizedCorpus
from jaxformer.data.packing import PackedPlan
from jaxformer.errors import InputError

READ_AHEAD = 4  # batches; one thread makes them much faster than a step uses them


def make_plan(
    corpus: TokenizedCorpus, config: DataConfig, *, seed: int, row_multiple: int, shuffle: bool
) -> Plan:
    """The plan that `data.batching` names, over the lengths of `corpus`.

    Evaluation (`shuffle=False`) is always planned in buckets: it keeps sentences over
    data.max_length whole, which fit into no packed row.

    Raises:
      InputError: data.tokens_per_batch is too small for `row_multiple` rows.
    """
    lengths = corpus.source_lengths, corpus.target_lengths
    settings = {
        "tokens_per_batch": config.tokens_per_batch,
        "row_multiple": row_multiple,
        "seed": seed,
        "shuffle": shuffle,
    }
    if config.batching == "packed" and shuffle:
        return PackedPlan(*lengths, row_length=config.max_length, **settings)
    return BucketPlan(*lengths, num_buckets=config.num_buckets, **settings)


def plan_summary(plan: Plan) -> str:
    """Table of the compiled shapes and the share of tokens in them, for the log."""
    lines = [f"{'source':>8}{'target':>8}{'rows':>8}{'batches/epoch':>15}"]
    lines += [
        f"{shape[0]:>8,}{shape[1]:>8,}{shape[2]:>8,}{shape[3]:>15,}" for shape in plan.shapes()
    ]
    source, target, both = plan.padding_efficiency()
    lines.append(
        f"{plan.steps_per_epoch:,} steps an epoch; tokens fill {both:.1%} of the batches "
        f"(source {source:.1%}, target {target:.1%})"
    )
    return "\n".join(lines)


def make_batch(
    corpus: TokenizedCorpus, plan: Plan, step: int, row_slice: slice, pad_id: int
) -> Batch:
    """Arrays of the rows `row_slice` of the global batch of step n.

    Returns:
      int32 `inputs` [B, S] and `targets` [B, T]: ids that end in EOS, then `pad_id`. A packed
      plan adds `inputs_segments`, `inputs_positions`, `targets_segments` and
      `targets_positions`: segments count from 1 in each row, 0 is padding, and positions restart
      at 0 in each segment.
    """
    layout = plan.layout(step, row_slice)
    rows, source_length, target_length = layout.shape
    batch: Batch = {}
    for name, ids, offsets, starts, width in (
        ("inputs", corpus.source_ids, corpus.source_offsets, layout.source_starts, source_length),
        ("targets", corpus.target_ids, corpus.target_offsets, layout.target_starts, target_length),
    ):
        first = offsets[layout.pairs]
        lengths = offsets[layout.pairs + 1] - first
        before = np.cumsum(lengths) - lengths
        token = np.arange(lengths.sum())
        read_at = token + np.repeat(first - before, lengths)
        write_at = token + np.repeat(layout.rows * width + starts - before, lengths)
        batch[name] = scatter(rows, width, write_at, ids[read_at], pad_id)
        if layout.segments is not None:
            segments = np.repeat(layout.segments, lengths)
            positions = token - np.repeat(before, lengths)
            batch[f"{name}_segments"] = scatter(rows, width, write_at, segments, 0)
            batch[f"{name}_positions"] = scatter(rows, width, write_at, positions, 0)
    return batch


def scatter(rows: int, width: int, where: np.ndarray, values: np.ndarray, fill: int) -> np.ndarray:
    """[rows, width] int32 of `fill` with `values` at the flat positions `where`."""
    cells = np.full(rows * width, fill, np.int32)
    cells[where] = values
    return cells.reshape(rows, width)


class StepSource:
    """Random access to the batches from `start_step` on; element i is step start_step + i."""

    def __init__(
        self,
        corpus: TokenizedCorpus,
        plan: Plan,
        pad_id: int,
        process_index: int,
        process_count: int,
        start_step: int,
    ):
        self._corpus, self._plan, self._pad_id = corpus, plan, pad_id
        self._process_index, self._process_count = process_index, process_count
        self._start_step = start_step

    def __len__(self) -> int:
        return sys.maxsize - self._start_step

    def __getitem__(self, index: int) -> Batch:
        step = self._start_step + int(index)
        rows = len(self._plan.rows(step)[0])
        low = self._process_index * rows // self._process_count
        high = (self._process_index + 1) * rows // self._process_count
        return make_batch(self._corpus, self._plan, step, slice(low, high), self._pad_id)


class BatchLoader:
    """Endless iterator over this process's rows of the batches of step start_step, + 1, ...

    Its whole state is `step`: a new loader with `start_step=step` goes on with the same batches,
    on any number of processes. One thread of Grain makes the batches ahead of use.

    Args:
      corpus: the tokenised pairs.
      plan: a `BucketPlan` or `PackedPlan` over the lengths of `corpus`.
      pad_id: fills the arrays behind the tokens.
      process_index, process_count: process p of P takes rows [p B / P, (p + 1) B / P).
      start_step: first step to deliver.

    Raises:
      InputError: the rows of a batch cannot be shared equally by the processes.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        plan: Plan,
        *,
        pad_id: int,
        process_index: int = 0,
        process_count: int = 1,
        start_step: int = 0,
    ):
        import grain

        for shape in plan.shapes():
            if shape.rows % process_count:
                raise InputError(
                    f"a batch of {shape.rows} rows cannot be shared by {process_count} processes; "
                    f"plan it with a row_multiple that {process_count} divides"
                )
        self.step = start_step
        source = StepSource(corpus, plan, pad_id, process_index, process_count, start_step)
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=READ_AHEAD)
        self._batches = iter(grain.MapDataset.source(source).to_iter_dataset(options))

    def __iter__(self) -> BatchLoader:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self.step += 1
        return batch

    def close(self) -> None:
        """End the reading thread; the loader cannot be used afterwards."""
        self._batches.close()
