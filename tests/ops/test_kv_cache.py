import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.kv_cache import SelfAttentionCache, cache_mask, write_cache


def test_write_changes_the_given_positions_only():
    zeros = jnp.zeros((2, 5, 3, 4))
    key = np.random.default_rng(0).normal(size=(2, 2, 3, 4)).astype(np.float32)
    cache = write_cache(SelfAttentionCache(zeros, zeros - 1), key, key * 2, jnp.int32(2))
    np.testing.assert_array_equal(cache.key[:, 2:4], key)
    np.testing.assert_array_equal(cache.value[:, 2:4], key * 2)
    untouched = np.array([0, 1, 4])
    np.testing.assert_array_equal(cache.key[:, untouched], 0)
    np.testing.assert_array_equal(cache.value[:, untouched], -1)


def test_write_keeps_the_dtype_of_the_cache():
    low = jnp.zeros((1, 2, 1, 2), jnp.bfloat16)
    cache = write_cache(
        SelfAttentionCache(low, low), jnp.ones((1, 1, 1, 2)), jnp.ones((1, 1, 1, 2)), 1
    )
    assert cache.key.dtype == cache.value.dtype == jnp.bfloat16
    np.testing.assert_array_equal(cache.key[0, :, 0].astype(float), [[0, 0], [1, 1]])


def test_cache_mask_is_the_causal_mask_from_the_index_on():
    expected = np.array([[[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]]], bool)
    mask = cache_mask(jnp.int32(2), 2, 5)
    assert mask.dtype == jnp.bool_
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(cache_mask(jnp.int32(0), 1, 3), [[[[True, False, False]]]])


@pytest.mark.parametrize(
    ("shape", "index", "words"),
    [
        ((1, 2, 3, 4), 0, r"key has shape \(1, 2, 3, 4\).*\(2, 2, 3, 4\)"),
        ((2, 2, 1, 4), 0, r"key has shape \(2, 2, 1, 4\)"),
        ((2, 2, 3, 2), 0, r"key has shape \(2, 2, 3, 2\)"),
        ((2, 3, 4), 0, r"key has shape \(2, 3, 4\).*\[R, T, N, H\]"),
        ((2, 6, 3, 4), jnp.int32(0), "6 keys.*cache of 5.*longer"),
        ((2, 2, 3, 4), 4, "index=4.*2 keys.*cache of 5.*0 to 3"),
        ((2, 2, 3, 4), -1, "index=-1.*0 to 3"),
    ],
)
def test_keys_that_do_not_fit_are_refused(shape, index, words):
    """One row would be written to the first only, and what goes past the end moves back."""
    cache = SelfAttentionCache(jnp.zeros((2, 5, 3, 4)), jnp.zeros((2, 5, 3, 4)))
    with pytest.raises(ValueError, match=words):
        write_cache(cache, jnp.ones(shape), jnp.ones(shape), index)


def test_values_of_another_shape_than_the_keys_are_refused():
    cache = SelfAttentionCache(jnp.zeros((2, 5, 3, 4)), jnp.zeros((2, 5, 3, 4)))
    with pytest.raises(ValueError, match=r"value has shape \(2, 1, 3, 4\).*\(2, 2, 3, 4\)"):
        write_cache(cache, jnp.ones((2, 2, 3, 4)), jnp.ones((2, 1, 3, 4)), 0)
