"""Decoding token by token with a cache gives the logits of the whole sequence at once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer

CONFIG = TransformerConfig(
    vocab_size=23,
    num_encoder_layers=1,
    num_decoder_layers=2,
    d_model=16,
    d_ff=24,
    num_heads=2,
    max_length=9,
)
VARIANTS = {
    "paper": {},
    "rotary": {"positions": "rotary", "attention_bias": True, "norm": "pre"},
    "scanned": {"scan_layers": True, "positions": "learned", "target_vocab_size": 19},
}
BATCH, WIDTH, LENGTH, ROOM = 2, 3, 5, 7
INPUTS = np.random.default_rng(1).integers(0, 23, (BATCH, 6)).astype(np.int32)
INPUTS_MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], bool)
# Other tokens for each of the three hypotheses of a sentence.
TOKENS = np.random.default_rng(2).integers(0, 19, (BATCH * WIDTH, LENGTH)).astype(np.int32)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


def start(model, params):
    variables = {"params": params}
    encoded = model.apply(variables, INPUTS, inputs_mask=INPUTS_MASK, method="encode").states
    return model.apply(
        variables,
        encoded,
        ROOM,
        inputs_mask=INPUTS_MASK,
        num_hypotheses=WIDTH,
        method="init_cache",
    )


@pytest.fixture(scope="module", params=VARIANTS)
def decoder(request, parameters_of, stack_layers):
    """Whole logits and weights, the first cache, and a step that is compiled for each length."""
    config = replace(CONFIG, **VARIANTS[request.param])
    model, params = Transformer(config), parameters_of(replace(config, scan_layers=False))
    params = stack_layers(params) if config.scan_layers else params

    @jax.jit
    def whole(params):
        """Without a cache every hypothesis has a copy of its sentence."""
        return start(model, params), model.apply(
            {"params": params},
            np.repeat(INPUTS, WIDTH, 0),
            TOKENS,
            inputs_mask=np.repeat(INPUTS_MASK, WIDTH, 0),
            return_attention=True,
        )

    @jax.jit
    def step(params, tokens, cache):
        return model.apply(
            {"params": params}, tokens, cache=cache, return_attention=True, method="decode"
        )

    return whole(params), lambda tokens, cache: step(params, tokens, cache)


@pytest.mark.parametrize("parts", [(2, 1, 1, 1), (1, 1, 1, 1, 1), (1, 2, 2)], ids=str)
def test_cached_logits_and_weights_equal_the_whole(decoder, parts):
    (cache, expected), step = decoder
    logits, weights, done = [], [], 0
    for part in parts:
        out = step(TOKENS[:, done : done + part], cache)
        cache = out.cache
        logits.append(out.logits)
        weights.append(out.attention)
        done += part
        assert int(cache.index) == done
    close(np.concatenate(logits, 1), expected.logits)
    close(np.concatenate([seen.cross for seen in weights], axis=3), expected.attention.cross)
    own = np.concatenate([seen.decoder for seen in weights], axis=3)
    assert own.shape[-1] == ROOM
    close(own[..., :LENGTH], expected.attention.decoder)
    assert not own[..., LENGTH:].any()


def cache_shapes(**changes):
    config = replace(CONFIG, **changes)
    model, token = Transformer(config), jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
    return jax.eval_shape(lambda params: start(model, params), params)


def test_hypotheses_share_the_rows_of_cross_attention():
    cache = cache_shapes()
    assert len(cache.self_attention) == len(cache.cross_attention) == 2
    for own, cross in zip(cache.self_attention, cache.cross_attention, strict=True):
        assert own.key.shape == own.value.shape == (BATCH * WIDTH, ROOM, 2, 8)
        assert cross.key.shape == cross.value.shape == (BATCH, 6, 2, 8)
    assert cache.inputs_mask.shape == (BATCH, 1, 1, 6)
    assert (cache.index.shape, cache.index.dtype) == ((), jnp.int32)


def test_cache_of_scanned_layers_keeps_the_rows_in_front():
    cache = cache_shapes(scan_layers=True)
    assert cache.self_attention.key.shape == (BATCH * WIDTH, 2, ROOM, 2, 8)
    assert cache.cross_attention.value.shape == (BATCH, 2, 6, 2, 8)


def test_cache_is_of_the_compute_dtype():
    cache = cache_shapes(dtype="bfloat16")
    arrays = jax.tree.leaves((cache.self_attention, cache.cross_attention))
    assert {leaf.dtype for leaf in arrays} == {jnp.dtype("bfloat16")}
