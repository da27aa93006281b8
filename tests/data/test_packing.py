"""The packed plan: pairs come back whole, rows are full, every pair appears once an epoch."""

import time

import numpy as np
import pytest
from random_corpus import random_corpus, rows_of

from jaxformer.data.packing import PackedPlan, pack_rows
from jaxformer.data.pair_dataset import make_batch
from jaxformer.errors import InputError

PAD = 0


def make_plan(corpus, **changes):
    settings = dict(row_length=64, tokens_per_batch=1024, row_multiple=4, seed=5) | changes
    return PackedPlan(corpus.source_lengths, corpus.target_lengths, **settings)


def unpack(batch):
    """All (source, target) id lists of a packed batch, read back by segment numbers."""
    for row in range(len(batch["inputs"])):
        numbers = np.unique(batch["inputs_segments"][row])
        for segment in numbers[numbers > 0]:
            pair = []
            for name in ("inputs", "targets"):
                here = batch[f"{name}_segments"][row] == segment
                positions = batch[f"{name}_positions"][row][here]
                assert positions.tolist() == list(range(here.sum()))
                assert np.diff(np.flatnonzero(here)).tolist() == [1] * (here.sum() - 1)
                pair.append(tuple(batch[name][row][here].tolist()))
            yield tuple(pair)


def test_every_segment_is_an_original_pair_and_each_comes_once_an_epoch():
    corpus = random_corpus(2000)
    plan = make_plan(corpus)
    original = sorted(
        tuple(tuple(side.tolist()) for side in corpus.pair(index)) for index in range(len(corpus))
    )
    for epoch in range(2):
        start = epoch * plan.steps_per_epoch
        found = []
        for step in range(start, start + plan.steps_per_epoch):
            found += unpack(make_batch(corpus, plan, step, slice(None), PAD))
        assert sorted(found) == original


def test_padding_is_pad_with_segment_and_position_zero():
    corpus = random_corpus(2000)
    plan = make_plan(corpus, tokens_per_batch=64 * 100)
    batch = make_batch(corpus, plan, plan.steps_per_epoch - 1, slice(None), -7)
    assert {name: (a.shape, a.dtype.name) for name, a in batch.items()} == dict.fromkeys(
        ["inputs", "inputs_segments", "inputs_positions",
         "targets", "targets_segments", "targets_positions"], ((100, 64), "int32")
    )  # fmt: skip
    for name in ("inputs", "targets"):
        padding = batch[f"{name}_segments"] == 0
        assert padding.any()
        np.testing.assert_array_equal(batch[name] == -7, padding)
        assert not batch[f"{name}_positions"][padding].any()
        # Segments count 1, 2, ... from the left, and padding lies at the end of the row.
        steps = np.diff(batch[f"{name}_segments"], axis=1)
        assert ((steps == 0) | (steps == 1) | padding[:, 1:]).all()
        assert (padding[:, 1:] >= padding[:, :-1]).all()


def test_every_sentence_in_a_batch_ends_in_eos():
    corpus = random_corpus(2000)
    batch = make_batch(corpus, make_plan(corpus), 0, slice(None), PAD)
    segments = np.pad(batch["targets_segments"], ((0, 0), (0, 1)))
    ends = (np.diff(segments, axis=1) != 0) & (batch["targets_segments"] > 0)
    assert ends.sum() > 20
    np.testing.assert_array_equal(batch["targets"] == 1, ends)


def test_epochs_shuffle_whole_rows():
    corpus = random_corpus(2000)
    plan = make_plan(corpus)
    steps = range(plan.steps_per_epoch)
    first = np.concatenate([rows_of(plan, step)[0] for step in steps])
    second = np.concatenate([rows_of(plan, step + plan.steps_per_epoch)[0] for step in steps])
    assert (first != second).mean() > 0.9
    np.testing.assert_array_equal(np.sort(first), np.sort(second))
    other = make_plan(corpus, seed=6)
    assert (np.concatenate([rows_of(other, s)[0] for s in steps[:4]]) != first[: 4 * 16]).any()


def test_purity_in_any_order_and_fixed_order_without_shuffle():
    corpus = random_corpus(2000)
    plan, other = make_plan(corpus), make_plan(corpus)
    steps = [plan.steps_per_epoch * 4 + 1, 2, plan.steps_per_epoch]
    forward = [rows_of(plan, step)[0].tolist() for step in steps]
    assert forward == [rows_of(other, step)[0].tolist() for step in reversed(steps)][::-1]
    fixed = make_plan(corpus, shuffle=False)
    first = [rows_of(fixed, step)[0].tolist() for step in (0, fixed.steps_per_epoch)]
    assert first[0] == first[1] != forward[0] and -1 not in first[0]


def test_parts_of_the_rows_join_to_the_whole():
    corpus = random_corpus(2000)
    plan = make_plan(corpus)
    whole = make_batch(corpus, plan, 3, slice(None), PAD)
    parts = [make_batch(corpus, plan, 3, slice(p * 4, p * 4 + 4), PAD) for p in range(4)]
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)


def test_pack_rows_by_hand():
    # Row 0: 4 + 3 on the source side; 2 does not fit beside them on the target side (5 + 1 + 3).
    rows = pack_rows(np.array([4, 3, 2, 8, 1]), np.array([5, 1, 3, 8, 2]), 8)
    assert rows.tolist() == [0, 0, 1, 2, 0]


@pytest.mark.parametrize("count", [1, 5, 4095, 4096, 12_289])
def test_no_row_overflows_on_either_side(count):
    random = np.random.RandomState(count)
    source, target = random.randint(1, 33, (2, count))
    rows = pack_rows(source, target, 32)
    assert len(rows) == count
    assert np.bincount(rows, weights=source).max() <= 32
    assert np.bincount(rows, weights=target).max() <= 32
    assert np.bincount(rows).min() >= 1


def word_lengths(real_data, language):
    path = real_data / "multi30k" / f"train.{language}"
    lines = path.read_bytes().split(b"\n")[:-1]
    return np.array([len(line.split()) + 1 for line in lines], np.int32)


def test_rows_are_filled_to_nine_tenths_on_real_lengths(real_data):
    source, target = word_lengths(real_data, "en"), word_lengths(real_data, "de")
    start = time.perf_counter()
    plan = PackedPlan(source, target, row_length=256, tokens_per_batch=8192, row_multiple=8, seed=0)
    seconds = time.perf_counter() - start
    efficiency = plan.padding_efficiency()
    print(f"packed {len(source) / seconds:,.0f} pairs/s, fill {efficiency.both:.3f}")
    assert efficiency.both >= 0.9
    assert max(efficiency) == efficiency.source >= 0.95
    assert len(source) / seconds > 20_000


def test_a_pair_longer_than_a_row_is_refused():
    corpus = random_corpus(2000)
    with pytest.raises(InputError, match=r"data\.max_length=32: a sentence of 40 tokens"):
        make_plan(corpus, row_length=32)


def test_too_small_a_budget_names_the_field_and_what_works():
    corpus = random_corpus(2000)
    with pytest.raises(InputError, match=r"data\.tokens_per_batch=255 .* at least 256"):
        make_plan(corpus, tokens_per_batch=255)
    assert make_plan(corpus, tokens_per_batch=256).shapes()[0].rows == 4
