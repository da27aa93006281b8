import jax.numpy as jnp
import numpy as np

from jaxformer.ops.kv_cache import LayerCache, cache_mask, write_cache


def test_write_changes_the_given_positions_only():
    zeros = jnp.zeros((2, 5, 3, 4))
    key = np.random.default_rng(0).normal(size=(2, 2, 3, 4)).astype(np.float32)
    cache = write_cache(LayerCache(zeros, zeros - 1), key, key * 2, jnp.int32(2))
    np.testing.assert_array_equal(cache.key[:, 2:4], key)
    np.testing.assert_array_equal(cache.value[:, 2:4], key * 2)
    untouched = np.array([0, 1, 4])
    np.testing.assert_array_equal(cache.key[:, untouched], 0)
    np.testing.assert_array_equal(cache.value[:, untouched], -1)


def test_write_keeps_the_dtype_of_the_cache():
    low = jnp.zeros((1, 2, 1, 2), jnp.bfloat16)
    cache = write_cache(LayerCache(low, low), jnp.ones((1, 1, 1, 2)), jnp.ones((1, 1, 1, 2)), 1)
    assert cache.key.dtype == cache.value.dtype == jnp.bfloat16
    np.testing.assert_array_equal(cache.key[0, :, 0].astype(float), [[0, 0], [1, 1]])


def test_cache_mask_is_the_causal_mask_from_the_index_on():
    expected = np.array([[[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]]], bool)
    mask = cache_mask(jnp.int32(2), 2, 5)
    assert mask.dtype == jnp.bool_
    np.testing.assert_array_equal(mask, expected)
    np.testing.assert_array_equal(cache_mask(jnp.int32(0), 1, 3), [[[[True, False, False]]]])
