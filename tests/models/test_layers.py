import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest

from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.models.layers import (
    FeedForward,
    LayerContext,
    MultiHeadAttention,
    TransformerLayer,
)
from jaxformer.ops.attention_mask import AttentionMask


def sample(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_multi_head_attention_alone():
    attention = MultiHeadAttention(num_heads=2, d_model=8)
    x, context = sample(3, 4, 8), sample(3, 5, 8, seed=1)
    variables = attention.init(jax.random.key(0), x)
    params = variables["params"]
    assert jax.tree.map(jnp.shape, params) == {
        name: {"kernel": (8, 8)} for name in ("query", "key", "value", "out")
    }
    out, cache, weights = attention.apply(variables, x)
    assert (out.shape, cache, weights) == ((3, 4, 8), None, None)
    across, _, weights = attention.apply(variables, x, context, return_weights=True)
    assert weights.shape == (3, 2, 4, 5)
    wanted, wanted_weights = reference.multi_head_attention(
        x[1], context[1], params, 2, np.ones((4, 5), bool)
    )
    np.testing.assert_allclose(across[1], wanted, atol=1e-5)
    np.testing.assert_allclose(weights[1], wanted_weights, atol=1e-5)


def test_heads_must_divide_the_width():
    with pytest.raises(InputError, match="d_model=8 is not divisible by num_heads=3"):
        MultiHeadAttention(num_heads=3, d_model=8).init(jax.random.key(0), sample(1, 2, 8))
    with pytest.raises(InputError, match="model.d_model=512 .* model.num_heads=7; nearest: 8"):
        TransformerConfig(num_heads=7)


def test_initial_ranges():
    """Glorot: sqrt(6 / (in + out)); query, key and value as parts of one [D, 3D] matrix."""
    width = 64
    attention = MultiHeadAttention(num_heads=2, d_model=width)
    params = attention.init(jax.random.key(0), sample(1, 2, width))["params"]
    for name, limit in {
        "query": np.sqrt(6 / (width + 3 * width)),
        "key": np.sqrt(6 / (width + 3 * width)),
        "value": np.sqrt(6 / (width + 3 * width)),
        "out": np.sqrt(6 / (2 * width)),
    }.items():
        kernel = np.asarray(params[name]["kernel"])
        assert 0.98 * limit < np.abs(kernel).max() <= limit
        assert np.std(kernel) == pytest.approx(limit / np.sqrt(3), rel=0.05)
    assert np.abs(params["query"]["kernel"] - params["key"]["kernel"]).max() > 0.1


@pytest.mark.parametrize("module", ["attention", "feed_forward"])
def test_inner_dropout_needs_its_rate_and_the_training_mode(module):
    make = {
        "attention": lambda rate: MultiHeadAttention(num_heads=2, d_model=8, dropout_rate=rate),
        "feed_forward": lambda rate: FeedForward(d_ff=12, dropout_rate=rate),
    }[module]
    x = sample(2, 4, 8)
    variables = make(0.0).init(jax.random.key(0), x)

    def run(rate, deterministic, seed=1):
        rngs = {"dropout": jax.random.key(seed)}
        out = make(rate).apply(variables, x, deterministic=deterministic, rngs=rngs)
        return np.asarray(out[0] if module == "attention" else out)

    plain = run(0.0, True)
    np.testing.assert_array_equal(run(0.5, True), plain)
    np.testing.assert_array_equal(run(0.0, False), plain)
    np.testing.assert_array_equal(run(0.5, False), run(0.5, False))
    assert np.abs(run(0.5, False) - plain).max() > 0.01
    assert np.abs(run(0.5, False) - run(0.5, False, seed=2)).max() > 0.01


def test_decoder_layer_alone():
    config = TransformerConfig(d_model=8, d_ff=12, num_heads=2)
    layer = TransformerLayer(config, attends_encoder=True)
    x, encoded = sample(2, 4, 8), sample(2, 3, 8, seed=1)
    context = LayerContext(AttentionMask(causal=True), encoded=encoded)
    variables = layer.init(jax.random.key(0), x, context)
    out, outputs = layer.apply(variables, x, context)
    assert out.shape == x.shape
    assert outputs == (None, None, None)
    assert set(variables["params"]) == {
        "self_attention",
        "self_attention_norm",
        "cross_attention",
        "cross_attention_norm",
        "feed_forward",
        "feed_forward_norm",
    }
    np.testing.assert_allclose(out.mean(-1), 0.0, atol=1e-6)  # post-norm: the norm comes last
    np.testing.assert_allclose(out.std(-1), 1.0, atol=1e-3)
