"""Batches from the loader equal the plan's, from any step and on any number of processes."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from random_corpus import random_corpus, rows_of

from jaxformer.config import DataConfig
from jaxformer.data.buckets import BucketPlan
from jaxformer.data.loader import BatchLoader
from jaxformer.data.packing import PackedPlan
from jaxformer.data.pair_dataset import PairDataset, make_batch, make_plan, plan_summary
from jaxformer.errors import InputError
from jaxformer.parallel.shares import BatchShare

PAD = 0


def plan_of(corpus, batching, *, shuffle=True, seed=1, row_multiple=4):
    config = DataConfig(batching=batching, tokens_per_batch=512, max_length=64, num_buckets=3)
    return make_plan(corpus, config, seed=seed, row_multiple=row_multiple, shuffle=shuffle)


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_bucket_batch_holds_each_pair_from_the_left():
    corpus = random_corpus(500)
    plan = plan_of(corpus, "buckets")
    for step in range(plan.steps_per_epoch):
        pairs, source_length, target_length = rows_of(plan, step)
        batch = make_batch(corpus, plan, step, slice(None), -7)
        assert sorted(batch) == ["inputs", "targets"]
        assert batch["inputs"].shape == (len(pairs), source_length)
        assert batch["targets"].shape == (len(pairs), target_length)
        assert batch["inputs"].dtype == batch["targets"].dtype == np.int32
        for row, pair in enumerate(pairs):
            source, target = corpus.pair(pair) if pair >= 0 else ([], [])
            padding = [-7] * (source_length - len(source))
            assert batch["inputs"][row].tolist() == [*source, *padding]
            padding = [-7] * (target_length - len(target))
            assert batch["targets"][row].tolist() == [*target, *padding]


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_loader_gives_the_batches_of_the_plan_for_three_epochs(batching):
    corpus = random_corpus(500)
    plan = plan_of(corpus, batching)
    loader = BatchLoader(PairDataset(corpus, plan, PAD))
    for step in range(3 * plan.steps_per_epoch):
        assert loader.step == step
        assert_same(next(loader), make_batch(corpus, plan, step, slice(None), PAD))
    loader.close()


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_resuming_in_the_middle_of_an_epoch_goes_on_with_the_next_batch(batching):
    corpus = random_corpus(500)
    plan = plan_of(corpus, batching)
    whole = BatchLoader(PairDataset(corpus, plan, PAD))
    expected = [next(whole) for _ in range(plan.steps_per_epoch + 5)]
    whole.close()
    stopped = BatchLoader(PairDataset(corpus, plan_of(corpus, batching), PAD))
    for _ in range(plan.steps_per_epoch - 2):
        next(stopped)
    stopped.close()
    resumed = BatchLoader(
        PairDataset(corpus, plan_of(corpus, batching), PAD), start_step=stopped.step
    )
    for step in range(plan.steps_per_epoch - 2, plan.steps_per_epoch + 5):
        assert_same(next(resumed), expected[step])
    resumed.close()


@pytest.mark.parametrize("batching", ["buckets", "packed"])
@pytest.mark.parametrize("process_count", [2, 4])
def test_processes_share_the_same_global_batches(batching, process_count):
    corpus = random_corpus(500)
    plan = plan_of(corpus, batching)
    loaders = [
        BatchLoader(
            PairDataset(corpus, plan_of(corpus, batching), PAD),
            share=BatchShare(process_count, ((index, index + 1),)),
        )
        for index in range(process_count)
    ]  # fmt: skip
    for step in range(plan.steps_per_epoch + 2):
        parts = [next(loader) for loader in loaders]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        assert len({len(part["inputs"]) for part in parts}) == 1
        assert_same(joined, make_batch(corpus, plan, step, slice(None), PAD))
    for loader in loaders:
        loader.close()


def test_rows_that_processes_cannot_share_are_refused():
    corpus = random_corpus(500)
    plan = plan_of(corpus, "buckets", row_multiple=4)
    with pytest.raises(InputError, match="into 3 parts.* row_multiple"):
        BatchLoader(PairDataset(corpus, plan, PAD), share=BatchShare(3, ((0, 1),)))


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_a_share_of_two_runs_is_their_rows_one_below_the_other(batching):
    corpus = random_corpus(500)
    plan = plan_of(corpus, batching)
    share = BatchShare.of_parts(4, {0, 2, 3})
    loader = BatchLoader(PairDataset(corpus, plan, PAD), share=share, start_step=2)
    for step in (2, 3):
        whole = make_batch(corpus, plan, step, slice(None), PAD)
        quarter = len(whole["inputs"]) // 4
        rows = np.r_[0:quarter, 2 * quarter : 4 * quarter]
        assert_same(next(loader), {name: array[rows] for name, array in whole.items()})
    loader.close()


def test_seeking_goes_on_with_the_batch_of_that_step():
    corpus = random_corpus(500)
    plan = plan_of(corpus, "buckets")
    loader = BatchLoader(PairDataset(corpus, plan, PAD), start_step=3)
    for _ in range(6):
        next(loader)
    for first in (5, 3, 20):
        loader.seek(first)
        for step in (first, first + 1):
            assert loader.step == step
            assert_same(next(loader), make_batch(corpus, plan, step, slice(None), PAD))
    loader.close()


def test_close_ends_the_reading_thread():
    corpus = random_corpus(500)
    before = set(threading.enumerate())  # threads of earlier tests may end while this one runs
    loader = BatchLoader(PairDataset(corpus, plan_of(corpus, "buckets"), PAD))
    next(loader)
    own = set(threading.enumerate()) - before
    assert own
    loader.close()
    deadline = time.monotonic() + 10
    while any(thread.is_alive() for thread in own) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [thread.name for thread in own if thread.is_alive()]


def test_make_plan_follows_the_config():
    corpus = random_corpus(500)
    packed = plan_of(corpus, "packed")
    assert isinstance(packed, PackedPlan)
    assert packed.shapes()[0][:3] == (64, 64, 8)
    assert isinstance(plan_of(corpus, "buckets"), BucketPlan)
    assert len(plan_of(corpus, "buckets").shapes()) <= 3


def test_evaluation_is_planned_in_buckets_and_in_fixed_order():
    corpus = random_corpus(500, longest=200)
    plan = plan_of(corpus, "packed", shuffle=False)
    assert isinstance(plan, BucketPlan)
    again = rows_of(plan, plan.steps_per_epoch)[0]
    np.testing.assert_array_equal(rows_of(plan, 0)[0], again)


def test_plan_summary_lists_shapes_and_padding():
    lengths = np.full(100, 10, np.int32)
    plan = BucketPlan(
        lengths, lengths, tokens_per_batch=16_000, num_buckets=3, row_multiple=8, seed=0
    )
    assert plan_summary(plan) == (
        "  source  target    rows  batches/epoch\n"
        "      10      10   1,600              1\n"
        "1 steps an epoch; tokens fill 6.2% of the batches (source 6.2%, target 6.2%)"
    )


def test_make_batch_is_fast_enough_for_one_core():
    corpus = random_corpus(20_000)
    for batching in ("buckets", "packed"):
        plan = plan_of(corpus, batching, row_multiple=8)
        rows_of(plan, 0)
        start = time.perf_counter()
        for step in range(plan.steps_per_epoch):
            make_batch(corpus, plan, step, slice(None), PAD)
        rate = len(corpus) / (time.perf_counter() - start)
        print(f"{batching}: {rate:,.0f} pairs/s")
        assert rate > 10_000


def test_planning_needs_neither_grain_nor_jax():
    code = (
        "import sys; import jaxformer.data.loader, jaxformer.data.pair_dataset; "
        "print([m for m in ('grain', 'jax', 'tqdm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
