import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.masks import causal_mask, combine_masks, padding_mask, segment_mask


def equal(mask, expected):
    assert mask.dtype == jnp.bool_
    expected = np.array(expected, bool)
    assert mask.shape == expected.shape
    np.testing.assert_array_equal(mask, expected)


def test_padding_mask_hides_the_given_id_and_no_other():
    tokens = jnp.array([[5, 0, 7, 7], [7, 7, 7, 7]])
    equal(padding_mask(tokens, 7), [[[[1, 1, 0, 0]]], [[[0, 0, 0, 0]]]])
    equal(padding_mask(tokens, 0), [[[[1, 0, 1, 1]]], [[[1, 1, 1, 1]]]])


def test_causal_mask_sees_itself_and_what_came_before():
    equal(causal_mask(3), [[[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]])
    equal(causal_mask(1), [[[[1]]]])


def test_segment_mask_keeps_pairs_apart_and_padding_out():
    queries = jnp.array([[1, 1, 2, 0]])
    keys = jnp.array([[1, 2, 2, 0, 0]])
    expected = [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    equal(segment_mask(queries, keys), [[expected]])


def test_combined_masks_are_the_logical_and():
    rows = jnp.array([[[[True, False, True]]]])
    combined = combine_masks(None, causal_mask(3), rows, None)
    equal(combined, [[[[1, 0, 0], [1, 0, 0], [1, 0, 1]]]])
    assert combine_masks(None, None) is None
    assert combine_masks() is None
    assert combine_masks(None, rows) is rows


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4)])
def test_padding_mask_refuses_other_axes_and_float_ids(shape):
    with pytest.raises(ValueError, match=r"tokens has shape .*\[B, S\]"):
        padding_mask(jnp.zeros(shape, jnp.int32), 0)
    with pytest.raises(ValueError, match="tokens is float32.*int32"):
        padding_mask(jnp.zeros((2, 3)), 0)


@pytest.mark.parametrize(
    ("query", "key", "words"),
    [
        ((1, 4), (2, 5), r"key_segments has shape \(2, 5\).*\(1, any\)"),
        ((2, 4), (1, 5), r"key_segments has shape \(1, 5\).*\(2, any\)"),
        ((4,), (2, 5), r"query_segments has shape \(4,\).*\[B, T\]"),
        ((2, 4), (5,), r"key_segments has shape \(5,\).*\[B, S\]"),
    ],
)
def test_segments_of_other_rows_are_refused(query, key, words):
    with pytest.raises(ValueError, match=words):
        segment_mask(jnp.ones(query, jnp.int32), jnp.ones(key, jnp.int32))


def test_segments_that_are_no_integers_are_refused():
    with pytest.raises(ValueError, match="key_segments is float32.*int32"):
        segment_mask(jnp.ones((1, 2), jnp.int32), jnp.ones((1, 2)))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.float32])
def test_masks_that_are_not_bool_are_refused(dtype):
    """The and of 2 and 1 is 0 bit by bit."""
    with pytest.raises(ValueError, match=rf"masks\[1\] is {jnp.dtype(dtype)}.*bool"):
        combine_masks(None, jnp.ones((1, 1, 2, 2), dtype), causal_mask(2))
