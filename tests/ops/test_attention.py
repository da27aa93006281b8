import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest

from jaxformer.ops.attention import dot_product_attention
from jaxformer.ops.dropout import dropout
from jaxformer.ops.masks import causal_mask

B, T, S, N, H = 2, 4, 5, 3, 8


def arrays(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = ((B, T, N, H), (B, S, N, H), (B, S, N, H))
    return [(scale * rng.normal(size=shape)).astype(np.float32) for shape in shapes]


def masks():
    """Of each shape that broadcasts; the last has a query that sees nothing."""
    rng = np.random.default_rng(3)
    full = rng.random((B, N, T, S)) < 0.5
    full[1, 2, 3] = False
    return {
        "none": None,
        "keys": np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0]], bool)[:, None, None],
        "queries": rng.random((1, 1, T, S)) < 0.7,
        "heads": full,
    }


@pytest.mark.parametrize("kind", masks())
def test_equals_the_reference(kind):
    query, key, value = arrays()
    mask = masks()[kind]
    allowed = np.broadcast_to(True if mask is None else mask, (B, N, T, S))
    out, weights = dot_product_attention(query, key, value, mask, return_weights=True)
    assert out.shape == (B, T, N, H)
    assert weights.shape == (B, N, T, S)
    for b in range(B):
        for n in range(N):
            wanted, wanted_weights = reference.attention(
                np.float64(query[b, :, n]),
                np.float64(key[b, :, n]),
                np.float64(value[b, :, n]),
                allowed[b, n],
            )
            np.testing.assert_allclose(out[b, :, n], wanted, atol=1e-5)
            np.testing.assert_allclose(weights[b, n], wanted_weights, atol=1e-5)
    seen = allowed.any(-1)
    np.testing.assert_allclose(weights.sum(-1), seen.astype(float), atol=1e-6)


def test_one_query_and_two_keys_by_hand():
    """Scores 2 ln 3 / sqrt(4) = ln 3 and 0: weights 3/4 and 1/4."""
    query = jnp.array([[[[2 * np.log(3), 0, 0, 0]]]], jnp.float32)
    key = jnp.array([[[[1, 0, 0, 0]], [[0, 1, 0, 0]]]], jnp.float32)
    value = jnp.array([[[[4.0, 8, 0, 0]], [[8.0, 0, 0, 4]]]], jnp.float32)
    out, weights = dot_product_attention(query, key, value, return_weights=True)
    np.testing.assert_allclose(weights, [[[[0.75, 0.25]]]], atol=1e-6)
    np.testing.assert_allclose(out, [[[[5.0, 6.0, 0.0, 1.0]]]], atol=1e-5)


def test_a_query_without_keys_gives_zeros_and_finite_gradients():
    query, key, value = arrays()
    mask = np.ones((B, 1, T, S), bool)
    mask[0, 0, 1] = False
    out = dot_product_attention(query, key, value, mask)
    assert not np.asarray(out)[0, 1].any()
    assert np.asarray(out)[0, 0].all()
    gradients = jax.grad(
        lambda q, k, v: jnp.sum(dot_product_attention(q, k, v, mask) ** 2), argnums=(0, 1, 2)
    )(query, key, value)
    assert all(np.isfinite(g).all() for g in gradients)
    assert not np.asarray(gradients[0])[0, 1].any()
    assert np.asarray(gradients[0])[0, 0].any()


def test_masked_keys_have_no_influence():
    query, key, value = arrays()
    mask = np.array([True, True, False, True, False])[None, None, None]
    out = dot_product_attention(query, key, value, mask)
    for array in (key, value):
        array[:, ~mask[0, 0, 0]] = 1e6
    np.testing.assert_array_equal(out, dot_product_attention(query, key, value, mask))
    assert np.abs(np.asarray(out) - dot_product_attention(query, key, value)).max() > 1.0


def test_large_scores_do_not_overflow():
    query, key, value = arrays(scale=300.0)
    out, weights = dot_product_attention(query, key, value, return_weights=True)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)


def test_softmax_is_float32_in_bfloat16():
    low = [jnp.asarray(x, jnp.bfloat16) for x in arrays()]
    out, weights = dot_product_attention(*low, return_weights=True)
    assert (out.dtype, weights.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    wide, wide_weights = dot_product_attention(
        *(x.astype(jnp.float32) for x in low), return_weights=True
    )
    np.testing.assert_allclose(weights, wide_weights, atol=0.01)
    np.testing.assert_allclose(out.astype(jnp.float32), wide, atol=0.03)


def test_dropout_is_on_the_weights_and_not_in_those_returned():
    query, key, value = arrays()
    mask = jnp.pad(causal_mask(T), ((0, 0), (0, 0), (0, 0), (0, S - T)))
    plain, weights = dot_product_attention(query, key, value, mask, return_weights=True)
    out, same = dot_product_attention(
        query,
        key,
        value,
        mask,
        dropout_rate=0.5,
        dropout_key=jax.random.key(1),
        return_weights=True,
    )
    np.testing.assert_array_equal(same, weights)
    dropped = dropout(weights, 0.5, jax.random.key(1))
    np.testing.assert_allclose(out, np.einsum("bnts,bsnh->btnh", dropped, value), atol=1e-5)
    assert np.abs(np.asarray(out) - plain).max() > 0.1


@pytest.mark.parametrize(
    ("query", "key", "value", "words"),
    [
        ((2, 4, 8), (2, 5, 3, 8), (2, 5, 3, 8), r"query has shape \(2, 4, 8\).*N, H"),
        (
            (2, 4, 3, 8),
            (1, 5, 3, 8),
            (1, 5, 3, 8),
            r"key has shape \(1, 5, 3, 8\).*\(2, any, 3, 8\)",
        ),
        ((2, 4, 3, 8), (2, 5, 1, 8), (2, 5, 1, 8), r"key has shape \(2, 5, 1, 8\)"),
        ((2, 4, 3, 8), (2, 5, 3, 1), (2, 5, 3, 8), r"key has shape \(2, 5, 3, 1\)"),
        (
            (2, 4, 3, 8),
            (2, 5, 3, 8),
            (2, 1, 3, 8),
            r"value has shape \(2, 1, 3, 8\).*\(2, 5, 3, any\)",
        ),
    ],
)
def test_keys_and_values_are_not_broadcast(query, key, value, words):
    with pytest.raises(ValueError, match=words):
        dot_product_attention(jnp.ones(query), jnp.ones(key), jnp.ones(value))


@pytest.mark.parametrize("number", range(3))
def test_integers_are_refused_since_their_scale_would_be_zero(number):
    given = [jnp.asarray(x) for x in arrays()]
    given[number] = given[number].astype(jnp.int32)
    name = ("query", "key", "value")[number]
    with pytest.raises(ValueError, match=f"{name} is int32.*float32"):
        dot_product_attention(*given)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.zeros((1, 1, T, S), np.float32), "mask is float32.*bool.*mask == 0"),
        (np.ones((1, 1, T, S), np.int32), "mask is int32.*bool.*mask != 0"),
        (np.ones((T, S), bool), r"mask has shape \(4, 5\).*mask\[None, None\]"),
        (np.ones((B, 1, 1, S - 1), bool), r"mask has shape \(2, 1, 1, 4\).*\(2, 3, 4, 5\)"),
        (np.ones((3 * B, 1, T, S), bool), r"mask has shape \(6, 1, 4, 5\).*\(2, 3, 4, 5\)"),
    ],
)
def test_a_mask_that_would_say_something_else_is_refused(mask, words):
    """A mask to be added, 0 where a query may attend, was read the other way round."""
    with pytest.raises(ValueError, match=words):
        dot_product_attention(*arrays(), mask)


def test_no_keys_at_all_give_zeros():
    query, key, value = arrays()
    np.testing.assert_array_equal(dot_product_attention(query, key[:, :0], value[:, :0]), 0)


def test_no_product_of_bfloat16_is_made_in_float32():
    def loss(query, key, value):
        return jnp.sum(dot_product_attention(query, key, value).astype(jnp.float32) ** 2)

    parts = [jax.random.normal(k, (2, 8, 2, 16)) for k in jax.random.split(jax.random.key(3), 3)]
    half = [part.astype(jnp.bfloat16) for part in parts]
    gradient_fn = jax.jit(jax.grad(loss, (0, 1, 2)))
    text = gradient_fn.lower(*half).as_text()
    operands = re.findall(r"dot_general .*: \((tensor<\S+>), (tensor<\S+>)\) ->", text)
    assert len(operands) == 6 and all("bf16" in one for pair in operands for one in pair)
    for got, wanted in zip(gradient_fn(*half), gradient_fn(*parts), strict=True):
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            got.astype(jnp.float32), wanted, atol=0.03 * np.abs(wanted).max()
        )
