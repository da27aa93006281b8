"""Empty rows behind the batches of a plan change nothing else about them."""

import numpy as np
import pytest
from random_corpus import random_corpus, rows_of

from jaxformer.config import DataConfig
from jaxformer.data.loader import BatchLoader
from jaxformer.data.pair_dataset import PairDataset, make_batch, make_plan
from jaxformer.data.row_padding import RowPadding
from jaxformer.parallel.shares import BatchShare

PAD, MULTIPLE = 0, 8
KINDS = {
    "buckets": dict(batching="buckets"),
    "packed": dict(batching="packed"),
    "windows": dict(batching="packed", window_pairs=1000),
}


@pytest.fixture(scope="module", params=KINDS)
def plans(request):
    """A corpus, a plan of single rows, and the same with rows that eight devices can share."""
    corpus = random_corpus(2500)
    config = DataConfig(tokens_per_batch=1000, max_length=64, num_buckets=3, **KINDS[request.param])
    plan = make_plan(corpus, config, seed=1, row_multiple=1, shuffle=True)
    return corpus, plan, RowPadding(plan, MULTIPLE)


def test_the_batches_are_those_of_the_plan_with_empty_rows_behind(plans):
    corpus, plan, padded = plans
    assert padded.steps_per_epoch == plan.steps_per_epoch
    uneven = 0
    for step in range(0, 2 * plan.steps_per_epoch, 3):
        batch = make_batch(corpus, plan, step, slice(None), PAD)
        wider = make_batch(corpus, padded, step, slice(None), PAD)
        rows = len(batch["inputs"])
        assert len(wider["inputs"]) == -(-rows // MULTIPLE) * MULTIPLE
        uneven += rows % MULTIPLE > 0
        for name, array in batch.items():
            np.testing.assert_array_equal(wider[name][:rows], array)
            assert not wider[name][rows:].any() and wider[name].dtype == array.dtype
        pairs, *lengths = rows_of(padded, step)
        np.testing.assert_array_equal(pairs[:rows], rows_of(plan, step)[0])
        assert (pairs[rows:] == -1).all() and lengths == list(rows_of(plan, step)[1:])
    assert uneven > 5


def test_eight_processes_read_the_rows_of_one(plans):
    corpus, _, padded = plans
    loaders = [
        BatchLoader(
            PairDataset(corpus, padded, PAD), share=BatchShare(8, ((i, i + 1),)), start_step=3
        )
        for i in range(8)
    ]
    for step in range(3, 12):
        parts = [next(loader) for loader in loaders]
        whole = make_batch(corpus, padded, step, slice(None), PAD)
        for name, array in whole.items():
            np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), array)
    for loader in loaders:
        loader.close()


def test_shapes_and_fill_count_the_empty_rows(plans):
    _, plan, padded = plans
    assert [s.rows for s in padded.shapes()] == [-(-s.rows // 8) * 8 for s in plan.shapes()]
    assert [s[:2] + s[3:] for s in padded.shapes()] == [s[:2] + s[3:] for s in plan.shapes()]

    def cells(shapes, width):
        return sum(s.rows * s.batches_per_epoch * width(s) for s in shapes)

    widths = (
        lambda s: s.source_length,
        lambda s: s.target_length,
        lambda s: s.source_length + s.target_length,
    )
    for share, before, width in zip(
        padded.padding_efficiency(), plan.padding_efficiency(), widths, strict=True
    ):
        tokens = before * cells(plan.shapes(), width)
        assert share == pytest.approx(tokens / cells(padded.shapes(), width))
        assert 0 < share < before


def test_rows_that_fit_stay_as_they_are():
    corpus = random_corpus(500)
    config = DataConfig(tokens_per_batch=1024, max_length=64, batching="packed")
    plan = make_plan(corpus, config, seed=1, row_multiple=8, shuffle=True)
    padded = RowPadding(plan, 4)
    assert padded.shapes() == plan.shapes()
    np.testing.assert_allclose(padded.padding_efficiency(), plan.padding_efficiency())
