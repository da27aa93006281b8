import jax.numpy as jnp
import numpy as np

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
