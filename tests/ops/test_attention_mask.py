import jax
import numpy as np
import pytest

from jaxformer.ops.attention_kernels import attend
from jaxformer.ops.attention_mask import AttentionMask, model_masks
from jaxformer.ops.masks import causal_mask, segment_mask

LENGTHS = np.array([6, 1, 0, 3], np.int32)
SOURCE = np.array([[1, 1, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1]], np.int32)
TARGET = np.array([[1, 2, 3, 0], [1, 1, 1, 1]], np.int32)


def test_attention_masks_give_the_masks():
    causal = AttentionMask(causal=True)
    packed = AttentionMask(False, None, SOURCE, SOURCE)
    some = np.array([[[[True, False, True, True, False, True]]]])
    np.testing.assert_array_equal(causal.to_mask(6, 6), causal_mask(6))
    np.testing.assert_array_equal(causal.to_mask(2, 3)[0, 0], [[1, 0, 0], [1, 1, 0]])
    np.testing.assert_array_equal(packed.to_mask(6, 6), segment_mask(SOURCE, SOURCE))
    np.testing.assert_array_equal(
        AttentionMask(True, None, SOURCE, SOURCE, some).to_mask(6, 6),
        causal_mask(6) & segment_mask(SOURCE, SOURCE) & some,
    )
    np.testing.assert_array_equal(
        AttentionMask(key_lengths=LENGTHS).to_mask(2, 6)[:, 0, 0],
        [[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [0] * 6, [1, 1, 1, 0, 0, 0]],
    )
    np.testing.assert_array_equal(AttentionMask(mask=some).to_mask(4, 6), some)
    assert AttentionMask().to_mask(6, 6) is None


def test_the_masks_of_a_model_with_packed_rows():
    of = model_masks(inputs_segments=SOURCE, targets_segments=TARGET)
    np.testing.assert_array_equal(of.encoder.to_mask(6, 6), segment_mask(SOURCE, SOURCE))
    np.testing.assert_array_equal(
        of.decoder.to_mask(4, 4), causal_mask(4) & segment_mask(TARGET, TARGET)
    )
    np.testing.assert_array_equal(of.cross.to_mask(4, 6), segment_mask(TARGET, SOURCE))


def test_the_masks_of_a_model_with_padding():
    tokens = np.arange(6)[None] < LENGTHS[:, None]
    for given in ({"inputs_lengths": LENGTHS}, {"inputs_mask": tokens}):
        of = model_masks(**given)
        np.testing.assert_array_equal(of.encoder.to_mask(6, 6)[:, 0, 0], tokens)
        np.testing.assert_array_equal(of.decoder.to_mask(4, 4), causal_mask(4))
        np.testing.assert_array_equal(of.cross.to_mask(4, 6)[:, 0, 0], tokens)


def test_the_masks_of_a_model_without_masks():
    of = model_masks()
    assert (of.encoder.to_mask(6, 6), of.cross.to_mask(4, 6)) == (None, None)
    assert model_masks(inputs_segments=SOURCE).cross.to_mask(4, 6) is None


def test_jit_keeps_masks_apart_by_causal():
    to_mask = jax.jit(lambda attention_mask: attention_mask.to_mask(3, 3))
    np.testing.assert_array_equal(to_mask(AttentionMask(causal=True)), causal_mask(3))
    np.testing.assert_array_equal(
        to_mask(AttentionMask(key_lengths=np.array([2], np.int32))), [[[[1, 1, 0]]]]
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(key_lengths=LENGTHS[:1]), r"key_lengths has shape \(1,\).*\(4\)"),
        (dict(key_lengths=LENGTHS[:, None]), r"key_lengths has shape \(4, 1\).*\[B\]"),
        (dict(key_lengths=np.float32(LENGTHS)), "key_lengths is float32.*int32"),
        (dict(query_segments=np.ones((4, 3), int)), "key_segments=None.*or neither"),
        (dict(key_segments=np.ones((4, 6), int)), "query_segments=None.*or neither"),
        (
            dict(query_segments=np.ones((4, 1), int), key_segments=np.ones((4, 6), int)),
            r"query_segments has shape \(4, 1\).*\(4, 3\)",
        ),
        (
            dict(query_segments=np.ones((4, 3), int), key_segments=np.ones((1, 6), int)),
            r"key_segments has shape \(1, 6\).*\(4, 6\)",
        ),
        (dict(mask=np.ones((4, 1, 1, 5), bool)), r"mask has shape \(4, 1, 1, 5\).*\(4, 2, 3, 6\)"),
        (dict(mask=np.zeros((4, 1, 1, 6))), "mask is float64.*bool"),
    ],
)
def test_fields_of_another_attention_are_refused(fields, words):
    attention_mask = AttentionMask(**fields)
    query, key = np.ones((4, 3, 2, 8), np.float32), np.ones((4, 6, 2, 8), np.float32)
    with pytest.raises(ValueError, match=words):
        attention_mask.check(query.shape, 6)
    with pytest.raises(ValueError, match=words):
        attend(query, key, key, attention_mask=attention_mask)
