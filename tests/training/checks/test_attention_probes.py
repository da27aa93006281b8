import numpy as np
import pytest

from jaxformer.ops.attention_mask import AttentionSite
from jaxformer.training.checks.attention_probes import PLANTED, draw_probe, plant

ROWS, SOURCE, TARGET = 5, 24, 18
LENGTHS = {"encoder": (SOURCE, SOURCE), "decoder": (TARGET, TARGET), "cross": (TARGET, SOURCE)}


def draw(batching, name, dtype="float32"):
    site = AttentionSite(
        name, *LENGTHS[name], num_heads=2, head_dim=8, dtype=dtype, implementation="auto",
        causal=name == "decoder", packed=batching == "packed", is_cross=name == "cross",
    )  # fmt: skip
    return draw_probe(np.random.default_rng(0), site, ROWS)


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_hidden_keys_are_those_that_no_watched_query_sees(batching, name):
    probe = draw(batching, name)
    mask = np.broadcast_to(probe.attention_mask.to_mask(*LENGTHS[name]), (ROWS, 1, *LENGTHS[name]))[
        :, 0
    ]
    for row in range(ROWS):
        assert 0 < probe.watched[row].sum() <= -(-LENGTHS[name][0] // 2)
        for key in range(LENGTHS[name][1]):
            assert probe.hidden[row, key] == (not mask[row, probe.watched[row], key].any())
    assert probe.hidden.any()
    assert not probe.hidden.all()


def test_packed_rows_hide_sentences_before_and_after():
    probe = draw("packed", "decoder")
    segments = probe.attention_mask.query_segments
    assert (segments.max(axis=1) >= 1).all()
    assert (segments == 0).any()
    sides = set()
    for row in range(ROWS):
        (watched,) = set(segments[row][probe.watched[row]])
        others = segments[row][probe.hidden[row]]
        sides |= {"before"} if ((0 < others) & (others < watched)).any() else set()
        sides |= {"after"} if (others > watched).any() else set()
        sides |= {"the same, later"} if (others == watched).any() else set()
        assert not (~probe.hidden[row] & (segments[row] != watched)).any()
    assert sides == {"before", "after", "the same, later"}


def test_lengths_hold_a_full_a_short_and_an_empty_row():
    probe = draw("buckets", "cross")
    assert list(probe.attention_mask.key_lengths[:3]) == [SOURCE, 1, 0]
    assert list(probe.hidden.sum(axis=1)[:3]) == [0, SOURCE - 1, SOURCE]


def test_planting_changes_only_what_is_hidden():
    probe = draw("packed", "encoder", "bfloat16")
    planted = plant(probe)
    for name in ("key", "value"):
        before, after = getattr(probe, name), getattr(planted, name)
        assert after.dtype == before.dtype
        assert (after[probe.hidden] == PLANTED).all()
        np.testing.assert_array_equal(after[~probe.hidden], before[~probe.hidden])
    np.testing.assert_array_equal(planted.query, probe.query)
    assert not planted.cotangent[~probe.watched].any()
    np.testing.assert_array_equal(planted.cotangent[probe.watched], probe.cotangent[probe.watched])
