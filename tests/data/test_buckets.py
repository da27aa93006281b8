"""The bucket plan: every pair once an epoch, few shapes, little padding, no hidden state."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from random_corpus import rows_of

from jaxformer.data.batching import EMPTY_ROW, remember
from jaxformer.data.buckets import BucketPlan, bucket_chains, length_ends
from jaxformer.errors import InputError


def random_lengths(count=3000, seed=0, longest=60):
    random = np.random.RandomState(seed)
    source = np.clip(random.gamma(4.0, 4.0, count).astype(np.int32) + 2, 2, longest)
    target = np.clip(source + random.randint(-4, 7, count), 2, longest).astype(np.int32)
    return source, target


def make_plan(lengths, **changes):
    settings = dict(tokens_per_batch=1024, num_buckets=5, row_multiple=8, seed=3) | changes
    return BucketPlan(*lengths, **settings)


def epoch_pairs(plan, epoch):
    start = epoch * plan.steps_per_epoch
    rows = [rows_of(plan, step)[0] for step in range(start, start + plan.steps_per_epoch)]
    return np.concatenate(rows)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("num_buckets", [1, 2, 5, 64])
def test_each_pair_appears_once_an_epoch(num_buckets, shuffle):
    lengths = random_lengths()
    plan = make_plan(lengths, num_buckets=num_buckets, shuffle=shuffle)
    for epoch in range(3):
        pairs = epoch_pairs(plan, epoch)
        assert np.sort(pairs[pairs != EMPTY_ROW]).tolist() == list(range(3000))


def test_rows_fit_their_shape_and_only_one_batch_has_empty_rows():
    source, target = random_lengths()
    plan = make_plan((source, target))
    known = {(s.source_length, s.target_length): s.rows for s in plan.shapes()}
    partial = []
    for step in range(2 * plan.steps_per_epoch):
        pairs, source_length, target_length = rows_of(plan, step)
        assert len(pairs) == known[source_length, target_length]
        filled = pairs[pairs != EMPTY_ROW]
        assert len(filled) > 0
        assert source[filled].max() <= source_length and target[filled].max() <= target_length
        if len(filled) < len(pairs):
            partial.append((step // plan.steps_per_epoch, source_length, target_length))
    longest = plan.shapes()[-1][:2]
    assert partial == [(0, *longest), (1, *longest)]


def test_same_step_same_rows_whatever_was_asked_before():
    lengths = random_lengths()
    plan, other = make_plan(lengths), make_plan(lengths)
    steps = [plan.steps_per_epoch * 5 + 3, 0, plan.steps_per_epoch * 2, 7, 0]
    forward = [rows_of(plan, step)[0] for step in steps]
    backward = [rows_of(other, step)[0] for step in reversed(steps)][::-1]
    for first, second in zip(forward, backward, strict=True):
        np.testing.assert_array_equal(first, second)


def test_known_rows_of_a_seed():
    # The shuffles come from raw Philox words, so no new NumPy may change a run that is resumed.
    plan = make_plan((np.arange(2, 18, dtype=np.int32),) * 2, tokens_per_batch=72, row_multiple=1)
    assert [tuple(shape) for shape in plan.shapes()] == [
        (10, 10, 7, 1),
        (14, 14, 5, 1),
        (18, 18, 4, 1),
    ]
    assert [rows_of(plan, step)[0].tolist() for step in range(plan.steps_per_epoch)] == [
        [12, 14, 15, 13],
        [4, 0, 2, 1, 3, 6, 8],
        [5, 7, 11, 10, 9],
    ]


def test_epochs_and_seeds_differ():
    lengths = random_lengths()
    plan = make_plan(lengths)
    first, second = epoch_pairs(plan, 0), epoch_pairs(plan, 1)
    assert len(first) == len(second)
    assert (first != second).mean() > 0.9
    assert (epoch_pairs(make_plan(lengths, seed=4), 0) != first).mean() > 0.9
    widths = [rows_of(plan, step)[1] for step in range(plan.steps_per_epoch)]
    assert widths != sorted(widths)


def test_without_shuffle_all_epochs_are_one():
    plan = make_plan(random_lengths(), shuffle=False)
    np.testing.assert_array_equal(epoch_pairs(plan, 0), epoch_pairs(plan, 7))


@pytest.mark.parametrize("row_multiple", [1, 8, 24])
def test_rows_are_multiples_within_the_token_budget(row_multiple):
    plan = make_plan(random_lengths(), row_multiple=row_multiple, tokens_per_batch=1500)
    for source_length, target_length, rows, _ in plan.shapes():
        assert rows % row_multiple == 0
        longer = max(source_length, target_length)
        assert rows * longer <= 1500 < (rows + row_multiple) * longer


@pytest.mark.parametrize("num_buckets", [1, 2, 3, 6])
def test_at_most_num_buckets_shapes(num_buckets):
    shapes = make_plan(random_lengths(), num_buckets=num_buckets).shapes()
    assert len(shapes) == num_buckets
    assert (
        sum(shape.batches_per_epoch for shape in shapes)
        == make_plan(random_lengths(), num_buckets=num_buckets).steps_per_epoch
    )


def test_one_length_needs_one_shape():
    lengths = np.full(100, 10, np.int32)
    plan = make_plan((lengths, lengths), tokens_per_batch=160)
    assert [tuple(shape) for shape in plan.shapes()] == [(10, 10, 16, 7)]
    assert plan.padding_efficiency().both == 100 / 112


def test_source_and_target_lengths_of_a_shape_differ_where_the_pairs_do():
    source, target = np.full(64, 6, np.int32), np.full(64, 20, np.int32)
    plan = make_plan((source, target), tokens_per_batch=320)
    assert [tuple(shape) for shape in plan.shapes()] == [(6, 20, 16, 4)]
    assert plan.padding_efficiency() == (1.0, 1.0, 1.0)


def test_chains_are_the_best_of_all_nested_pairs():
    random = np.random.RandomState(1)
    ends = np.array([2, 4, 6, 8, 10])
    histogram = random.randint(0, 50, (5, 5))
    histogram[4, 4] = 1

    def pairs_in(shape):
        return histogram[ends <= shape[0]][:, ends <= shape[1]].sum()

    grid = [(s, t) for s in ends for t in ends]
    inside = [shape for shape in grid if shape != (10, 10)]
    costs = [pairs_in(a) * sum(a) + (pairs_in((10, 10)) - pairs_in(a)) * 20 for a in inside]
    one, two = bucket_chains(histogram, ends, ends, 2)
    assert one.tolist() == [[10, 10]]
    assert two.tolist() == [list(inside[int(np.argmin(costs))]), [10, 10]]


def test_length_ends_cover_and_stay_few():
    lengths = np.array([1, 2, 3, 31, 33, 61, 65, 200, 20_000])
    ends = length_ends(lengths)
    assert ends[:6].tolist() == [2, 4, 32, 36, 64, 64 + 8 * 104]
    assert ends[-1] >= 20_000
    assert len(length_ends(np.arange(1, 100_000))) <= 49
    assert length_ends(np.arange(1, 257))[-1] == 256


def test_padding_efficiency_counts_what_the_batches_hold():
    source, target = random_lengths()
    plan = make_plan((source, target))
    cells = np.zeros(2)
    for step in range(plan.steps_per_epoch):
        pairs, source_length, target_length = rows_of(plan, step)
        cells += len(pairs) * np.array([source_length, target_length])
    efficiency = plan.padding_efficiency()
    assert efficiency.source == pytest.approx(source.sum() / cells[0])
    assert efficiency.target == pytest.approx(target.sum() / cells[1])
    assert efficiency.both == pytest.approx((source.sum() + target.sum()) / cells.sum())


def word_lengths(real_data, language):
    path = real_data / "multi30k" / f"train.{language}"
    lines = path.read_bytes().split(b"\n")[:-1]
    return np.array([len(line.split()) + 1 for line in lines], np.int32)


def test_six_buckets_fill_85_percent_on_real_lengths(real_data):
    source, target = word_lengths(real_data, "en"), word_lengths(real_data, "de")
    assert len(source) == len(target) == 29_000
    plan = BucketPlan(source, target, tokens_per_batch=2048, num_buckets=6, row_multiple=8, seed=0)
    assert len(plan.shapes()) == 6
    assert plan.padding_efficiency().both >= 0.85


def test_too_small_a_budget_names_the_field_and_what_works():
    lengths = random_lengths()
    with pytest.raises(InputError, match=r"data\.tokens_per_batch=479 .* at least 480"):
        make_plan(lengths, tokens_per_batch=479)
    assert make_plan(lengths, tokens_per_batch=480).shapes()[-1].rows == 8


def test_evaluation_takes_sentences_over_the_budget():
    source, target = random_lengths()
    source[7] = 1000
    plan = make_plan((source, target), shuffle=False)
    assert plan.shapes()[-1].source_length >= 1000
    assert plan.shapes()[-1].rows == 8
    source_length, target_length, rows, _ = plan.shapes()[0]
    assert rows == 1024 // max(source_length, target_length) // 8 * 8
    pairs = epoch_pairs(plan, 0)
    assert np.sort(pairs[pairs != EMPTY_ROW]).tolist() == list(range(3000))


def test_no_pairs_and_unequal_sides_are_refused():
    some, none = np.array([3, 4], np.int32), np.array([], np.int32)
    with pytest.raises(InputError, match="0 source and 0 target sentences"):
        make_plan((none, none))
    with pytest.raises(InputError, match="2 source and 1 target sentences"):
        make_plan((some, some[:1]))


def test_threads_that_ask_at_once_compute_a_value_once():
    calls = []

    def slow(index):
        calls.append(index)
        time.sleep(0.05)
        return index * 10

    ask = remember(slow, 2)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, [1, 1, 1, 2])) == [10, 10, 10, 20]
    assert sorted(calls) == [1, 2]
