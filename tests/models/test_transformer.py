"""What must not change the logits, what must, and what the variants have in common."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer

CONFIG = TransformerConfig(
    vocab_size=23,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=16,
    d_ff=24,
    num_heads=2,
    max_length=9,
    dropout_rate=0.2,
)
INPUTS_MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]], bool)
INPUTS = np.random.default_rng(1).integers(0, 23, (3, 6)).astype(np.int32)
TOKENS = np.random.default_rng(2).integers(0, 23, (3, 5)).astype(np.int32)


# Three pairs in row 0, in another order in row 1, nothing in row 2: (pair, source, target tokens).
PACKED_ROWS = [[(0, 2, 1), (1, 1, 2), (2, 2, 1)], [(2, 2, 1), (0, 2, 1), (1, 1, 2)], []]


def output_of(params, inputs=INPUTS, tokens=TOKENS, config=CONFIG, **arguments):
    arguments = {"inputs_mask": INPUTS_MASK} | arguments
    return Transformer(config).apply({"params": params}, inputs, tokens, **arguments)


def logits_of(params, *inputs, **arguments):
    return output_of(params, *inputs, **arguments).logits


def all_equations(jaxpr):
    """Every equation of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(value):
                yield from all_equations(getattr(value, "jaxpr", value))


def is_jaxpr(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def trace(config, **arguments):
    token = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)["params"]

    def logits_and_attention(params):
        output = output_of(params, config=config, **arguments)
        return output.logits, output.attention

    return jax.make_jaxpr(logits_and_attention)(shapes)


@pytest.fixture(scope="module")
def params(parameters_of):
    return parameters_of(CONFIG)


@pytest.fixture(scope="module")
def logits(params):
    return np.asarray(logits_of(params))


def test_a_target_changes_no_logits_before_it(params, logits):
    changed = TOKENS.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 23
    other = np.asarray(logits_of(params, tokens=changed))
    np.testing.assert_array_equal(other[:, :3], logits[:, :3])
    assert (np.abs(other - logits)[:, 3:].max(-1) > 1e-3).all()


def test_the_last_source_token_changes_every_logit(params, logits):
    changed = INPUTS.copy()
    changed[0, 5] = (changed[0, 5] + 1) % 23
    other = np.asarray(logits_of(params, inputs=changed))
    assert (np.abs(other - logits)[0].max(-1) > 1e-4).all()
    np.testing.assert_array_equal(other[1:], logits[1:])


def test_what_stands_in_the_padding_changes_nothing(params, logits):
    garbage = np.where(INPUTS_MASK, INPUTS, 22 - INPUTS)
    np.testing.assert_array_equal(logits_of(params, inputs=garbage), logits)


def test_more_padding_changes_nothing(params, logits):
    wide = np.pad(INPUTS, ((0, 0), (0, 2)), constant_values=7)
    mask = np.pad(INPUTS_MASK, ((0, 0), (0, 2)))
    other = logits_of(params, inputs=wide, inputs_mask=mask)
    np.testing.assert_allclose(other, logits, atol=1e-5)


def test_batch_mates_and_their_order_change_nothing(params, logits):
    order = np.array([2, 0, 1])
    other = logits_of(params, INPUTS[order], TOKENS[order], inputs_mask=INPUTS_MASK[order])
    np.testing.assert_allclose(other, logits[order], atol=1e-5)
    mates = np.where(np.arange(3)[:, None] == 1, INPUTS, (INPUTS + 5) % 23)
    np.testing.assert_allclose(logits_of(params, inputs=mates)[1], logits[1], atol=1e-5)


def pack(ids, side):
    """Ids, segments and positions of `PACKED_ROWS`; what is left of a row is padding."""
    arrays = np.zeros((3, *ids.shape), np.int32)
    arrays[0] = 22
    for row, pairs in enumerate(PACKED_ROWS):
        done = 0
        for segment, pair in enumerate(pairs, start=1):
            places = np.arange(pair[side])
            arrays[:, row, done + places] = ids[pair[0], places], places * 0 + segment, places
            done += pair[side]
    return arrays


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_packed_logits_equal_unpacked_ones(parameters_of, positions):
    config = replace(CONFIG, positions=positions)
    params = parameters_of(config)
    inputs, inputs_segments, inputs_positions = pack(INPUTS, 1)
    tokens, targets_segments, targets_positions = pack(TOKENS, 2)
    packed = logits_of(
        params,
        inputs,
        tokens,
        config,
        inputs_mask=None,
        inputs_segments=inputs_segments,
        inputs_positions=inputs_positions,
        targets_segments=targets_segments,
        targets_positions=targets_positions,
    )
    assert np.isfinite(packed).all()
    mask = np.arange(6) < np.array([[2], [1], [2]])
    alone = np.asarray(logits_of(params, config=config, inputs_mask=mask))
    for row, pairs in enumerate(PACKED_ROWS):
        for segment, (pair, _, size) in enumerate(pairs, start=1):
            mine = np.asarray(packed)[row, targets_segments[row] == segment]
            np.testing.assert_allclose(mine, alone[pair, :size], atol=1e-5)


def run_scanned(params, **changes):
    """Compiled: outside of `jit` a scan would be compiled again at each call."""
    config = replace(CONFIG, scan_layers=True, **changes)
    return jax.jit(lambda p: output_of(p, config=config, return_attention=True))(params)


def test_scanned_layers_equal_unrolled_ones(params, logits, stack_layers):
    scanned = run_scanned(stack_layers(params))
    np.testing.assert_allclose(scanned.logits, logits, atol=1e-5)
    expected = output_of(params, return_attention=True)
    for actual, wanted in zip(scanned.attention, expected.attention, strict=True):
        np.testing.assert_allclose(actual, wanted, atol=1e-5)


def test_returned_attention_changes_no_logits(params, logits):
    output = output_of(params, return_attention=True)
    np.testing.assert_array_equal(output.logits, logits)
    assert {w.dtype for w in output.attention} == {jnp.dtype("float32")}


def test_attention_is_stacked_only_on_request():
    stacks = {(2, 3, 2, 6, 6), (2, 3, 2, 5, 5), (2, 3, 2, 5, 6)}

    def stacked(jaxpr):
        shapes = {v.aval.shape for e in all_equations(jaxpr.jaxpr) for v in e.outvars}
        return stacks & shapes

    plain, asked = trace(CONFIG), trace(CONFIG, return_attention=True)
    assert [a.shape for a in plain.out_avals] == [(3, 5, 23)]
    assert stacked(plain) == set()
    assert {a.shape for a in asked.out_avals} == stacks | {(3, 5, 23)}
    assert stacked(asked) == stacks


@pytest.mark.parametrize(
    ("changes", "sites"),
    [
        ({}, 2 + 2 * 2 + 2 * 3),  # embeddings; sub-layers of the encoder and of the decoder
        ({"dropout_rate": 0.0}, 0),
        ({"dropout_rate": 0.0, "attention_dropout_rate": 0.1}, 2 + 2 * 2),
        ({"dropout_rate": 0.0, "activation_dropout_rate": 0.1}, 2 + 2),
    ],
)
def test_places_of_dropout(changes, sites):
    config = replace(CONFIG, **changes)
    rngs = {"dropout": jax.random.key(0)}

    def drawn(**mode):
        equations = all_equations(trace(config, **mode).jaxpr)
        return sum(equation.primitive.name == "random_bits" for equation in equations)

    assert drawn(deterministic=False, rngs=rngs) == sites
    assert drawn(deterministic=True) == 0


def test_dropout_follows_its_key(params, logits):
    dropped = logits_of(params, deterministic=False, rngs={"dropout": jax.random.key(0)})
    again = logits_of(params, deterministic=False, rngs={"dropout": jax.random.key(0)})
    other = logits_of(params, deterministic=False, rngs={"dropout": jax.random.key(1)})
    np.testing.assert_array_equal(dropped, again)
    assert np.abs(dropped - logits).max() > 0.1
    assert np.abs(dropped - other).max() > 0.1


def test_bfloat16_computes_norms_and_softmax_in_float32(params, logits, stack_layers):
    output = run_scanned(stack_layers(params), dtype="bfloat16")
    low, weights = output.logits, output.attention
    assert low.dtype == jnp.float32
    assert np.any(low != low.astype(jnp.bfloat16).astype(jnp.float32))  # and not rounded before
    assert {w.dtype for w in weights} == {jnp.dtype("float32")}
    np.testing.assert_allclose(weights.cross.sum(-1), 1.0, atol=1e-6)
    assert 1e-4 < np.abs(low.astype(jnp.float32) - logits).max() < 0.15
    types = {
        name: {
            equation.invars[0].aval.dtype.name
            for equation in all_equations(trace(replace(CONFIG, dtype="bfloat16")).jaxpr)
            if equation.primitive.name == name
        }
        for name in ("exp", "rsqrt", "dot_general")
    }
    assert types == {"exp": {"float32"}, "rsqrt": {"float32"}, "dot_general": {"bfloat16"}}
