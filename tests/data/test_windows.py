"""Plans in windows: each pair once an epoch, pure, few shapes, and never all lengths in memory."""

from types import SimpleNamespace

import numpy as np
import pytest
from random_corpus import rows_of

from jaxformer.config import DataConfig
from jaxformer.data import windows
from jaxformer.data.batching import EMPTY_ROW
from jaxformer.data.buckets import BucketPlan
from jaxformer.data.corpus import CorpusReport, TokenizedCorpus
from jaxformer.data.loader import BatchLoader
from jaxformer.data.packing import PackedPlan
from jaxformer.data.pair_dataset import PairDataset, make_batch, make_plan, plan_summary
from jaxformer.data.windows import WindowedPlan, window_bounds
from jaxformer.errors import InputError

COUNT = 5003
BOTH = pytest.mark.parametrize("batching", ["buckets", "packed"])


def random_lengths(count=COUNT, seed=0, longest=60):
    """Longer and longer, so that windows differ as parts of a real corpus do."""
    random = np.random.RandomState(seed)
    mean = np.linspace(6, 30, count)
    source = np.clip(random.gamma(4.0, mean / 4, count).astype(np.int32) + 2, 2, longest)
    target = np.clip(source + random.randint(-4, 7, count), 2, longest).astype(np.int32)
    return source, target


def windowed(batching, lengths=None, **changes):
    settings = dict(window_pairs=1000, tokens_per_batch=1024, row_multiple=8, seed=3)
    settings |= dict(row_length=64) if batching == "packed" else dict(num_buckets=4)
    make = getattr(windows, f"plan_{batching}_in_windows")
    return make(*(lengths or random_lengths()), **(settings | changes))


def epoch_pairs(plan, epoch):
    """Pairs of each step of an epoch."""
    start = epoch * plan.steps_per_epoch
    steps = range(start, start + plan.steps_per_epoch)
    return [plan.layout(step, slice(None)).pairs for step in steps]


def windows_in_order(plan, epoch, bounds):
    """Window of each step of an epoch; fails if a batch mixes two."""
    ends = [high for _, high in bounds]
    found = [np.unique(np.searchsorted(ends, p, side="right")) for p in epoch_pairs(plan, epoch)]
    assert {len(numbers) for numbers in found} == {1}
    return [int(numbers[0]) for numbers in found]


def same_layout(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@BOTH
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_pair_appears_once_an_epoch(batching, shuffle):
    plan = windowed(batching, shuffle=shuffle)
    for epoch in range(3):
        pairs = np.concatenate(epoch_pairs(plan, epoch))
        assert np.sort(pairs).tolist() == list(range(COUNT))


@BOTH
def test_a_window_is_finished_before_the_next_and_has_as_many_steps_each_epoch(batching):
    plan, bounds = windowed(batching), window_bounds(COUNT, 1000)
    orders, steps = [], []
    for epoch in range(4):
        visited = windows_in_order(plan, epoch, bounds)
        order = list(dict.fromkeys(visited))
        assert sorted(order) == list(range(6))
        assert visited == [w for w in order for _ in range(visited.count(w))]
        orders.append(order)
        steps.append([visited.count(window) for window in range(6)])
    assert steps == [steps[0]] * 4 and min(steps[0]) < max(steps[0])
    assert sum(steps[0]) == plan.steps_per_epoch
    assert len({tuple(order) for order in orders}) == 4
    fixed = windowed(batching, shuffle=False)
    assert windows_in_order(fixed, 1, bounds) == sorted(windows_in_order(fixed, 0, bounds))


@BOTH
def test_same_step_same_batch_in_any_order_and_from_a_new_plan(batching):
    plan = windowed(batching)
    steps = list(range(2 * plan.steps_per_epoch))
    sequential = [plan.layout(step, slice(None)) for step in steps]
    np.random.RandomState(0).shuffle(steps)
    for step in steps[:60]:
        same_layout(plan.layout(step, slice(None)), sequential[step])
    for step in (steps[0], 3 * plan.steps_per_epoch + 5):
        again = windowed(batching).layout(step, slice(None))
        same_layout(again, plan.layout(step, slice(None)))


@BOTH
def test_seeds_and_epochs_differ(batching):
    plan = windowed(batching)
    first, second, other = (
        np.concatenate(epoch_pairs(p, epoch))
        for p, epoch in ((plan, 0), (plan, 1), (windowed(batching, seed=4), 0))
    )
    assert (first != second).mean() > 0.9
    assert (first != other).mean() > 0.9


def test_no_two_windows_are_shuffled_alike():
    same = np.full(4000, 7, np.int32)
    plan = windowed("buckets", (same, same), row_multiple=1, tokens_per_batch=8 * 1000)
    assert plan.steps_per_epoch == 4
    orders = {tuple(np.concatenate([p]) % 1000) for p in epoch_pairs(plan, 0)}
    assert len(orders) == 4


def test_known_rows_of_a_seed():
    # As for the other plans: no new NumPy may change a run that is resumed.
    lengths = (np.arange(2, 18, dtype=np.int32),) * 2
    plan = windowed("buckets", lengths, window_pairs=8, tokens_per_batch=72, row_multiple=1)
    rows = [rows_of(plan, step)[0].tolist() for step in range(plan.steps_per_epoch)]
    assert rows[:2] == [[15, 13, 14, -1], [8, 12, 11, 10, 9]]
    assert rows[2:] == [[3, 0, 2, 1, 4, 7, 5], [6, -1, -1, -1]]


@BOTH
def test_all_windows_share_the_shapes(batching):
    plan = windowed(batching)
    known = {shape[:3]: shape.batches_per_epoch for shape in plan.shapes()}
    assert len(known) == (4 if batching == "buckets" else 1)
    seen = dict.fromkeys(known, 0)
    for step in range(plan.steps_per_epoch):
        rows, *widths = rows_of(plan, step)
        assert plan.layout(step, slice(None)).shape == (len(rows), *widths)
        seen[*widths, len(rows)] += 1
    assert seen == known


def test_more_windows_do_not_make_more_shapes():
    counts = [len(windowed("buckets", window_pairs=n).shapes()) for n in (COUNT, 1000, 300)]
    assert counts == [4, 4, 4]


def test_one_window_has_the_shapes_of_the_plain_plan():
    budget = dict(tokens_per_batch=1024, row_multiple=8)
    plain = BucketPlan(*random_lengths(), num_buckets=4, seed=3, **budget)
    plan = windowed("buckets", window_pairs=COUNT, **budget)
    assert plan.shapes() == plain.shapes()
    assert plan.padding_efficiency() == plain.padding_efficiency()


@BOTH
def test_padding_efficiency_counts_what_the_batches_hold(batching):
    source, target = random_lengths()
    plan = windowed(batching)
    cells = np.zeros(2)
    for step in range(plan.steps_per_epoch):
        cells += np.prod([[len(rows_of(plan, step)[0])] * 2, rows_of(plan, step)[1:]], axis=0)
    efficiency = plan.padding_efficiency()
    assert efficiency.source == pytest.approx(source.sum() / cells[0])
    assert efficiency.target == pytest.approx(target.sum() / cells[1])


@BOTH
def test_rows_name_different_things_in_different_windows(batching):
    plan = windowed(batching)
    rows = np.concatenate([rows_of(plan, step)[0] for step in range(plan.steps_per_epoch)])
    filled = rows[rows != EMPTY_ROW]
    assert len(set(filled)) == len(filled) and filled.max() < COUNT


class CountedLengths:
    """Lengths that know how many of them were read at once, and how often in all."""

    def __init__(self, lengths):
        self._lengths, self.largest, self.reads = lengths, 0, 0

    def __len__(self):
        return len(self._lengths)

    def __getitem__(self, part):
        read = self._lengths[part]
        assert isinstance(part, slice)
        self.largest, self.reads = max(self.largest, len(read)), self.reads + len(read)
        return read


@BOTH
def test_never_more_than_a_window_of_lengths_is_read_at_once(batching, monkeypatch):
    monkeypatch.setattr(windows, "CHUNK_PAIRS", 256)
    lengths = [CountedLengths(side) for side in random_lengths()]
    plan = windowed(batching, lengths)
    assert [side.reads for side in lengths] == [2 * COUNT, 2 * COUNT]
    assert lengths[0].largest == (256 if batching == "buckets" else 834)
    rows_of(plan, 0)
    assert lengths[0].reads - 2 * COUNT in (833, 834)  # one window, planned when it is needed
    epoch_pairs(plan, 0)
    assert [side.reads for side in lengths] == [3 * COUNT, 3 * COUNT]
    assert [side.largest for side in lengths] == [834, 834]


def test_chunks_join_without_a_seam(monkeypatch):
    whole = windowed("buckets")
    monkeypatch.setattr(windows, "CHUNK_PAIRS", 77)
    cut = windowed("buckets")
    assert cut.shapes() == whole.shapes()
    assert cut.padding_efficiency() == whole.padding_efficiency()


def test_windows_are_alike_and_cover_the_corpus():
    assert window_bounds(10, 10) == [(0, 10)]
    assert window_bounds(11, 10) == [(0, 5), (5, 11)]
    bounds = window_bounds(100_000_001, 4_000_000)
    assert len(bounds) == 26 and bounds[0][0] == 0 and bounds[-1][1] == 100_000_001
    assert {high - low for low, high in bounds} == {3_846_153, 3_846_154}
    assert all(bounds[i][1] == bounds[i + 1][0] for i in range(25))


def random_corpus(count):
    random, sides = np.random.RandomState(0), {}
    for side, lengths in zip(("source", "target"), random_lengths(count), strict=True):
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        sides[f"{side}_ids"] = random.randint(2, 1000, offsets[-1]).astype(np.uint16)
        sides[f"{side}_offsets"] = offsets
    report = CorpusReport(read=count, kept=count)
    return TokenizedCorpus(**sides, original_index=np.arange(count), report=report)


def plan_of(corpus, batching, *, shuffle=True, sampler=None, max_length=64):
    config = DataConfig(
        batching=batching, tokens_per_batch=1024, max_length=max_length, window_pairs=1000
    )
    return make_plan(corpus, config, seed=1, row_multiple=4, shuffle=shuffle, sampler=sampler)


@BOTH
def test_loader_gives_the_batches_of_the_pairs_from_any_step(batching):
    corpus = random_corpus(2500)
    plan = plan_of(corpus, batching)
    assert isinstance(plan, WindowedPlan)
    assert f"{plan.steps_per_epoch:,} steps an epoch" in plan_summary(plan)
    start = plan.steps_per_epoch - 3
    loader = BatchLoader(PairDataset(corpus, plan, 0), start_step=start)
    for step in range(start, start + 6):
        batch = next(loader)
        layout = plan.layout(step, slice(None))
        for pair, row, first in zip(*layout[:3], strict=True):
            ids = corpus.pair(pair)[0]
            assert batch["inputs"][row, first : first + len(ids)].tolist() == ids.tolist()
        assert (batch["inputs"] > 0).sum() == corpus.source_lengths[layout.pairs].sum()
        assert (batch["targets"] > 0).sum() == corpus.target_lengths[layout.pairs].sum()
        part = make_batch(corpus, plan, step, slice(4, 8), 0)
        np.testing.assert_array_equal(part["inputs"], batch["inputs"][4:8])
    loader.close()


@BOTH
def test_lengths_that_a_sampler_reserves_are_what_is_planned(batching):
    corpus = random_corpus(2500)
    sampler = SimpleNamespace(planned_lengths=lambda side, lengths: lengths * (side + 1))
    plan = plan_of(corpus, batching, max_length=120, sampler=sampler)
    settings = {"row_length": 120} if batching == "packed" else {"num_buckets": 6}
    lengths = corpus.source_lengths, corpus.target_lengths * 2
    other = windowed(batching, lengths, row_multiple=4, seed=1, **settings)
    same_layout(plan.layout(9, slice(None)), other.layout(9, slice(None)))


@BOTH
def test_a_corpus_of_one_window_is_planned_as_ever(batching):
    corpus = random_corpus(1000)
    settings = dict(tokens_per_batch=1024, row_multiple=4, seed=1)
    lengths = corpus.source_lengths, corpus.target_lengths
    plan = plan_of(corpus, batching)
    plain = (
        BucketPlan(*lengths, num_buckets=6, **settings)
        if batching == "buckets"
        else PackedPlan(*lengths, row_length=64, **settings)
    )
    assert type(plan) is type(plain) and plan.steps_per_epoch == plain.steps_per_epoch
    for step in range(plan.steps_per_epoch + 1):
        same_layout(plan.layout(step, slice(None)), plain.layout(step, slice(None)))


def test_evaluation_of_a_large_corpus_is_in_buckets_and_in_fixed_order():
    plan = plan_of(random_corpus(2500), "packed", shuffle=False)
    assert isinstance(plan, WindowedPlan)
    same_layout(plan.layout(7, slice(None)), plan.layout(plan.steps_per_epoch + 7, slice(None)))
    pairs = np.concatenate(epoch_pairs(plan, 0))
    assert np.sort(pairs).tolist() == list(range(2500))


def test_bad_settings_are_refused_before_anything_is_planned():
    with pytest.raises(InputError, match=r"data\.tokens_per_batch=479 .* at least 480"):
        windowed("buckets", tokens_per_batch=479)
    with pytest.raises(InputError, match=r"data\.tokens_per_batch=511 .* at least 512"):
        windowed("packed", tokens_per_batch=511)
    with pytest.raises(InputError, match=r"data\.max_length=50: a sentence of 60 tokens"):
        windowed("packed", row_length=50)
    some = random_lengths()[0]
    with pytest.raises(InputError, match="5003 source and 5002 target sentences"):
        windowed("buckets", (some, some[1:]))
