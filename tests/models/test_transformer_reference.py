"""The model against the float64 NumPy implementation of the paper's equations."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest

from jaxformer.model_config import ACTIVATIONS, TransformerConfig
from jaxformer.models.affine import LayerNorm
from jaxformer.models.layers import FeedForward, MultiHeadAttention
from jaxformer.models.transformer import Transformer

CONFIG = TransformerConfig(
    vocab_size=23,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=16,
    d_ff=24,
    num_heads=2,
    max_length=9,
)
# Each value of each choice occurs; the default is the paper's model.
VARIANTS = {
    "paper": {},
    "pre_norm": {"norm": "pre", "activation": "gelu", "positions": "learned"},
    "biases": {"attention_bias": True, "activation": "swish", "num_heads": 4},
    "rotary": {"positions": "rotary", "activation": "swiglu"},
    "untied": {"tie_embeddings": False, "activation": "reglu"},
    "separate": {"target_vocab_size": 19, "positions": "learned"},
    "all": {
        "norm": "pre",
        "activation": "geglu",
        "positions": "rotary",
        "attention_bias": True,
        "tie_embeddings": False,
        "target_vocab_size": 19,
        "num_encoder_layers": 1,
        "num_decoder_layers": 3,
    },
}
INPUTS_MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]], bool)


def sample_ids(config):
    rng = np.random.default_rng(1)
    inputs = rng.integers(0, config.vocab_size, (3, 6)).astype(np.int32)
    decoder_inputs = rng.integers(0, config.output_vocab_size, (3, 5)).astype(np.int32)
    return inputs, decoder_inputs


def close(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def outputs(request, parameters_of):
    """Config, what jaxformer gives and what the reference gives, for the same random parameters."""
    config = replace(CONFIG, **VARIANTS[request.param])
    model, params = Transformer(config), parameters_of(config)
    inputs, decoder_inputs = sample_ids(config)
    output = model.apply(
        {"params": params},
        inputs,
        decoder_inputs,
        inputs_mask=INPUTS_MASK,
        return_attention=True,
    )
    encoded = model.apply({"params": params}, inputs, inputs_mask=INPUTS_MASK, method="encode")
    expected = reference.transformer(params, config, inputs, decoder_inputs, INPUTS_MASK)
    return config, output.logits, encoded.states, output.attention, expected


def test_variants_cover_every_choice():
    configs = [replace(CONFIG, **change) for change in VARIANTS.values()]
    assert {config.activation for config in configs} == set(ACTIVATIONS)
    assert {config.positions for config in configs} == {"sinusoidal", "learned", "rotary"}
    assert {config.norm for config in configs} == {"post", "pre"}


def test_logits_equal_the_reference(outputs):
    _, logits, _, _, expected = outputs
    assert 0.3 < np.std(expected.logits) < 3.0  # the bound of 1e-5 is on values of about 1
    close(logits, expected.logits)


def test_encoder_output_equals_the_reference(outputs):
    _, _, encoded, _, expected = outputs
    close(encoded, expected.encoded)


def test_attention_weights_equal_the_reference(outputs):
    config, _, _, weights, expected = outputs
    layers, heads = config.num_decoder_layers, config.num_heads
    assert weights.encoder.shape == (config.num_encoder_layers, 3, heads, 6, 6)
    assert weights.decoder.shape == (layers, 3, heads, 5, 5)
    assert weights.cross.shape == (layers, 3, heads, 5, 6)
    for kind, wanted in (
        ("encoder", expected.encoder_weights),
        ("decoder", expected.decoder_weights),
        ("cross", expected.cross_weights),
    ):
        close(getattr(weights, kind), wanted)
        np.testing.assert_allclose(getattr(weights, kind).sum(-1), 1.0, atol=1e-6)


def test_logits_without_a_mask_equal_the_reference(parameters_of):
    params = parameters_of(CONFIG)
    inputs, decoder_inputs = sample_ids(CONFIG)
    logits = Transformer(CONFIG).apply({"params": params}, inputs, decoder_inputs).logits
    close(logits, reference.transformer(params, CONFIG, inputs, decoder_inputs).logits)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_equals_the_reference(activation):
    module = FeedForward(d_ff=24, activation=activation)
    x = np.random.default_rng(0).normal(size=(2, 3, 16)).astype(np.float32)
    shapes = jax.tree.map(jnp.shape, jax.eval_shape(module.init, jax.random.key(0), x)["params"])
    params = reference.draw_parameters(shapes, seed=1)
    assert set(params) == (
        {"inner", "outer", "gate"} if "glu" in activation else {"inner", "outer"}
    )
    close(module.apply({"params": params}, x), reference.feed_forward(x, params, activation))


@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_layer_norm_equals_the_reference(offset):
    x = np.random.default_rng(0).normal(size=(4, 5, 16)).astype(np.float32) + np.float32(offset)
    params = reference.draw_parameters({"scale": (16,), "bias": (16,)}, seed=1)
    normalised = LayerNorm().apply({"params": params}, x)
    close(normalised, reference.layer_norm(x, params))


@pytest.mark.parametrize("rotary", [False, True], ids=["plain", "rotary"])
def test_multi_head_attention_equals_the_reference(rotary):
    module = MultiHeadAttention(num_heads=4, d_model=16, use_bias=True, rotary=rotary)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 16)).astype(np.float32)
    mask = rng.random((2, 5, 5)) < 0.6
    mask[0, 2] = False  # a query without any key
    shapes = jax.tree.map(jnp.shape, jax.eval_shape(module.init, jax.random.key(0), x)["params"])
    params = reference.draw_parameters(shapes, seed=1)
    positions = np.array([[0, 1, 2, 0, 1], [4, 5, 6, 7, 9]], np.int32)
    out, cache, weights = module.apply(
        {"params": params}, x, mask=mask[:, None], positions=positions, return_weights=True
    )
    assert cache is None
    for row in range(2):
        wanted, wanted_weights = reference.multi_head_attention(
            x[row], x[row], params, 4, mask[row], positions[row] if rotary else None
        )
        close(out[row], wanted)
        close(weights[row], wanted_weights)
    assert not np.asarray(weights)[0, :, 2].any()
    close(out[0, 2], params["out"]["bias"])
