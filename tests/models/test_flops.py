"""FLOPs of a step: counted by hand, and beside the parameters of the real model."""

import jax
import jax.numpy as jnp
import pytest

from jaxformer.model_config import TransformerConfig
from jaxformer.models.flops import Flops, decoding_flops, forward_flops
from jaxformer.models.transformer import Transformer

SMALL = dict(
    vocab_size=10, num_encoder_layers=1, num_decoder_layers=2, d_model=4, d_ff=8, num_heads=2
)


def training_flops(config, source_lengths, target_lengths):
    """Of an update: the backward pass counts as two forward passes."""
    return 3.0 * forward_flops(config, source_lengths, target_lengths).total


def test_one_pair_by_hand():
    # A source token: encoder attention 4 * 16, feed-forward 2 * 32, cross-attention 2 * 2 * 16.
    # A target token: 2 layers of 4 * 16 + 2 * 16 + 2 * 32, logits 4 * 10.
    # Scores and sums: 2 * 4 * (9 + 2 * 4 + 2 * 6).
    expected = 6 * (3 * 192 + 2 * 360 + 232)
    assert training_flops(TransformerConfig(**SMALL), [3], [2]) == expected


def test_a_gated_feed_forward_has_three_matrices():
    config = TransformerConfig(**SMALL, activation="swiglu")
    assert training_flops(config, [3], [2]) == 6 * (3 * 224 + 2 * 424 + 232)


def test_a_separate_target_vocabulary_makes_the_logits():
    config = TransformerConfig(**SMALL | {"target_vocab_size": 30})
    assert training_flops(config, [3], [2]) == 6 * (3 * 192 + 2 * (360 + 4 * 20) + 232)


def test_pairs_add_up():
    config = TransformerConfig(**SMALL)
    apart = training_flops(config, [3], [2]) + training_flops(config, [5], [1])
    assert training_flops(config, [3, 5], [2, 1]) == apart


@pytest.mark.parametrize("activation", ["relu", "geglu"])
def test_six_for_each_parameter_in_a_matrix_product(activation):
    """Of the model as it is: one token a side, all scores are of 1 x 1."""
    config = TransformerConfig.preset("tiny", vocab_size=500, activation=activation)
    token = jnp.zeros((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes) if leaf.ndim == 2)
    scores = 2 * config.d_model * (4 + 2 * 4)
    assert training_flops(config, [1], [1]) == 6 * (parameters + scores)


def test_a_forward_pass_by_hand():
    found = forward_flops(TransformerConfig(**SMALL), [3], [2])
    assert found == Flops(weights=2 * (3 * 192 + 2 * 360), attention=2 * 232)
    assert found.times(0.5) == Flops(3 * 192 + 2 * 360, 232)
    assert training_flops(TransformerConfig(**SMALL), [3], [2]) == 3 * found.total


@pytest.mark.parametrize("width", [1, 4])
def test_decoding_to_the_limit_is_a_forward_pass_for_each_hypothesis(width):
    config = TransformerConfig(**SMALL)
    sizes = {"rows": 5, "source_length": 3, "max_length": 2, "width": width}
    before, a_round = decoding_flops(config, **sizes)
    assert before == Flops(weights=5 * 2 * 3 * 192, attention=5 * 4 * 4 * 9)
    forward = forward_flops(config, [3] * 5, [2] * 5)
    every = [b + 2 * r for b, r in zip(before, a_round, strict=True)]
    expected = [b + width * (f - b) for b, f in zip(before, forward, strict=True)]
    assert every == expected
