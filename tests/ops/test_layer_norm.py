"""Layer normalisation by hand, and its written derivative against JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.layer_norm import layer_norm


def plain(x, scale, bias, epsilon):
    x = x.astype(jnp.float32)
    deviation = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(deviation), axis=-1, keepdims=True)
    shape = (1,) * (x.ndim - 1) + scale.shape
    return deviation / jnp.sqrt(variance + epsilon) * scale.reshape(shape) + bias.reshape(shape)


def sample(shape=(2, 5, 8)):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=shape) * 3 + 100, rng.normal(size=8), rng.normal(size=8)
    return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


def test_by_hand():
    x, scale, bias = jnp.array([[1.0, 3.0]]), jnp.array([1.0, 2.0]), jnp.array([0.0, 5.0])
    np.testing.assert_allclose(layer_norm(x, scale, bias, 3.0), [[-0.5, 6.0]])  # variance 1 + 3


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 5, 8)])
def test_equals_the_definition_and_its_derivative(shape):
    operands = sample(shape)
    gradient = jnp.asarray(np.random.default_rng(1).normal(size=shape), jnp.float32)
    got, pull_back = jax.vjp(lambda *x: layer_norm(*x, 1e-6), *operands)
    wanted, pull_back_wanted = jax.vjp(lambda *x: plain(*x, 1e-6), *operands)
    np.testing.assert_allclose(got, wanted, atol=1e-4)
    for one, other in zip(pull_back(gradient), pull_back_wanted(gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_bfloat16_keeps_float32_statistics():
    x, scale, bias = sample()
    narrow = layer_norm(x.astype(jnp.bfloat16), scale, bias, 1e-6)
    wide = layer_norm(x.astype(jnp.bfloat16).astype(jnp.float32), scale, bias, 1e-6)
    assert narrow.dtype == jnp.bfloat16
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(scale=jnp.ones(1)), r"scale has shape \(1,\).*\(8\)"),
        (dict(bias=jnp.ones(1)), r"bias has shape \(1,\).*\(8\)"),
        (dict(x=jnp.ones((2, 1))), r"scale has shape \(8,\).*\(1\)"),
        (dict(x=jnp.ones((2, 8), jnp.int32)), "x is int32.*float32"),
        (dict(bias=jnp.ones(8, jnp.bfloat16)), "bias is bfloat16 and scale is float32"),
        (dict(epsilon=-1e-6), "epsilon=-1e-06.*at least 0"),
        (dict(epsilon=float("nan")), "epsilon=nan.*at least 0"),
    ],
)
def test_what_is_refused(changes, words):
    arguments = dict(x=jnp.ones((2, 8)), scale=jnp.ones(8), bias=jnp.ones(8), epsilon=1e-6)
    x, *others = (arguments | changes).values()
    with pytest.raises(ValueError, match=words):
        layer_norm(x, *others)
    with pytest.raises(ValueError, match=words):
        jax.vjp(lambda x: layer_norm(x, *others).astype(jnp.float32), x)
