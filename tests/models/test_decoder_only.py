"""A stack without cross-attention is a decoder-only model, with a cache like any other."""

from dataclasses import replace
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_reference import draw_parameters

from jaxformer.decoding.engine import decode
from jaxformer.decoding.strategies import BeamSearch, Greedy
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.models.attention import MultiHeadAttention
from jaxformer.models.embedding import embed, embedding_table, project
from jaxformer.models.layers import LayerContext
from jaxformer.models.stack import TransformerStack
from jaxformer.ops.attention_mask import AttentionMask
from jaxformer.ops.kv_cache import CrossAttentionCache, empty_cache

CONFIG = TransformerConfig(vocab_size=19, d_model=16, d_ff=24, num_heads=2, max_length=9)
VARIANTS = {
    "post-norm": {},
    "pre-norm, rotary": {"positions": "rotary", "norm": "pre"},
    "learned": {"positions": "learned"},
    "scanned": {"scan_layers": True, "norm": "pre"},
}
ROWS, LENGTH, PADDING = 3, 6, 2
TOKENS = np.random.default_rng(2).integers(3, 19, (ROWS, LENGTH)).astype(np.int32)
STARTS = np.array([0, 2, 1], np.int32)
PAD, EOS, BOS = range(3)


class DecoderOnly(nn.Module):
    """What a language model is made of."""

    config: TransformerConfig

    def setup(self):
        self.token_embedding = embedding_table(self.config, self.config.vocab_size)
        if self.config.positions == "learned":
            self.positions = embedding_table(self.config, self.config.max_length)
        self.decoder = TransformerStack(self.config, 2)

    def __call__(self, ids, cache=None):
        rows = self.positions if self.config.positions == "learned" else None
        embedded = embed(self.config, ids, self.token_embedding, rows, cache=cache)
        context = LayerContext(AttentionMask(causal=True), embedded.positions)
        output = self.decoder(embedded.states, context, cache, return_weights=True)
        return project(output.states, tied=self.token_embedding), output

    def init_cache(self, rows, columns, starts=None):
        return self.decoder.init_cache(rows, columns, starts=starts)


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    """A function of ids and a cache, one that makes caches, and the kind of positions."""
    module = DecoderOnly(replace(CONFIG, **VARIANTS[request.param]))
    shapes = jax.eval_shape(module.init, jax.random.key(0), TOKENS)["params"]
    variables = {"params": draw_parameters(jax.tree.map(jnp.shape, shapes), seed=1)}
    apply = jax.jit(partial(module.apply, variables))

    def make_cache(rows, columns, starts=None):
        return module.apply(variables, rows, columns, starts, method="init_cache")

    return apply, make_cache


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("parts", [(6,), (1,) * 6, (4, 1, 1)], ids=str)
def test_prefill_and_single_steps_equal_the_whole(model, parts):
    apply, make_cache = model
    expected, whole = apply(TOKENS)
    cache, done, logits = make_cache(ROWS, LENGTH + 1), 0, []
    for part in parts:
        found, output = apply(TOKENS[:, done : done + part], cache)
        cache, done = output.cache, done + part
        logits.append(found)
        assert int(cache.index) == done
    close(np.concatenate(logits, axis=1), expected)
    close(output.self_weights[..., :LENGTH], whole.self_weights[:, :, :, -parts[-1] :])
    assert cache.cross_attention is None and output.cross_weights is None


def test_padding_before_a_row_changes_nothing(model):
    apply, make_cache = model
    expected, _ = apply(TOKENS)
    columns = LENGTH + PADDING
    for garbage in (PAD, 7):
        padded = np.full((ROWS, columns), garbage, np.int32)
        for row, start in enumerate(STARTS):
            padded[row, start : start + LENGTH] = TOKENS[row]
        cache = make_cache(ROWS, columns, jnp.asarray(STARTS))
        prefilled, output = apply(padded[:, :5], cache)
        logits = [prefilled]
        for column in range(5, columns):
            found, output = apply(padded[:, column : column + 1], output.cache)
            logits.append(found)
        logits = np.concatenate(logits, axis=1)
        assert np.isfinite(logits).all()
        for row, start in enumerate(STARTS):
            close(logits[row, start : start + LENGTH], expected[row])
        before = np.arange(columns)[None, None, None, None] < STARTS[None, :, None, None, None]
        assert not (np.asarray(output.self_weights) * before).any()


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(3)], ids=str)
def test_prompts_go_on_as_the_model_without_a_cache_would(model, strategy):
    apply, make_cache = model
    prompts, lengths, room = TOKENS[:, :3], np.array([3, 0, 2]), 7
    starts = jnp.repeat(3 - jnp.asarray(lengths), strategy.width)

    def step_fn(tokens, cache):
        logits, output = apply(tokens, cache)
        return logits, output.cache

    result = decode(
        step_fn, make_cache(ROWS * strategy.width, room + 3, starts), strategy, batch_size=ROWS,
        bos_id=BOS, eos_id=EOS, pad_id=PAD, max_length=room, prompts=prompts,
        prompt_lengths=lengths,
    )  # fmt: skip
    tokens = np.asarray(result.tokens)[:, 0]
    logits, _ = apply(np.insert(tokens, 0, BOS, axis=1)[:, :-1])
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    for row, length in enumerate(np.asarray(result.lengths)[:, 0]):
        np.testing.assert_array_equal(tokens[row, : lengths[row]], prompts[row, : lengths[row]])
        chosen = log_probs[row, np.arange(length), tokens[row, :length]]
        np.testing.assert_allclose(chosen.sum(), result.log_probs[row, 0], rtol=1e-5)
        if isinstance(strategy, Greedy):
            best = log_probs[row].argmax(axis=1)[lengths[row] : length - 1]
            np.testing.assert_array_equal(tokens[row, lengths[row] : length - 1], best)


def test_a_cache_says_what_it_holds():
    attention = MultiHeadAttention(num_heads=2, d_model=8, rotary=True)
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32)
    variables = attention.init(jax.random.key(0), x)
    cache = empty_cache(2, 5, 2, 4, jnp.float32)
    with pytest.raises(InputError, match="index=None: a SelfAttentionCache needs"):
        attention.apply(variables, x, cache=cache)
    first = attention.apply(variables, x[:, :2], cache=cache, index=jnp.int32(0))
    last = attention.apply(variables, x[:, 2:], cache=first.cache, index=jnp.int32(2))
    whole = attention.apply(variables, x, attention_mask=AttentionMask(causal=True))
    close(last.out[:, 0], whole.out[:, 2])
    ready = CrossAttentionCache(cache.key[:1] + 1, cache.value[:1] + 2)
    across = attention.apply(variables, x, cache=ready, index=jnp.int32(0), return_weights=True)
    assert across.cache is ready and across.weights.shape == (2, 2, 3, 5)
