"""The sums of a batch against NumPy: logits of the reference, then the loss by its definition."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest

from jaxformer.model_config import TransformerConfig
from jaxformer.ops.losses import label_smoothed_cross_entropy, shift_right
from jaxformer.tasks.translation_loss import Translation

CONFIG = TransformerConfig(
    vocab_size=23, num_encoder_layers=2, num_decoder_layers=2, d_model=16, d_ff=24, num_heads=2
)
PAD, EOS, BOS = 7, 1, 2  # the padding is not 0: an id of 0 is a token like any other
INPUTS = np.array([[5, 0, 9, 3, EOS, PAD], [4, EOS] + [PAD] * 4, [8, 6, EOS] + [PAD] * 3], np.int32)
TARGETS = np.array([[0, 4, EOS, PAD, PAD], [9, 9, 11, 12, EOS], [3, EOS] + [PAD] * 3], np.int32)
SMOOTHING = 0.1


def make_task(**options):
    return Translation(CONFIG, pad_id=PAD, bos_id=BOS, **({"label_smoothing": SMOOTHING} | options))


@pytest.fixture(scope="module")
def task():
    return make_task()


@pytest.fixture(scope="module")
def sums(task, parameters_of):
    batch = {"inputs": INPUTS, "targets": TARGETS}
    return task.loss_sums(parameters_of(CONFIG), batch)


def test_sums_equal_numpy(sums, parameters_of):
    expected = {"loss": 0.0, "nll": 0.0, "correct": 0, "weight": 0}
    for source, target in zip(INPUTS, TARGETS, strict=True):
        source, target = source[source != PAD], target[target != PAD]
        shifted = np.array([BOS, *target[:-1]])
        logits = reference.transformer(
            parameters_of(CONFIG), CONFIG, source[None], shifted[None]
        ).logits[0]
        for scores, token in zip(logits, target, strict=True):
            probabilities = reference.softmax(scores)
            wanted = np.full(23, SMOOTHING / 23)
            wanted[token] += 1 - SMOOTHING
            expected["loss"] -= float(wanted @ np.log(probabilities))
            expected["nll"] -= math.log(probabilities[token])
            expected["correct"] += int(np.argmax(scores) == token)
            expected["weight"] += 1
    assert expected["weight"] == 10
    assert {name: float(value) for name, value in sums.items()} == pytest.approx(expected, rel=1e-5)
    assert {value.dtype.name for value in sums.values()} == {"float32"}


def test_packed_sums_equal_unpacked_ones(task, sums, parameters_of):
    """The same three pairs in rows 0 and 1, beside padding."""
    rows = {name: np.zeros((3, 3, 7), np.int32) for name in ("inputs", "targets")}
    for name, ids in (("inputs", INPUTS), ("targets", TARGETS)):
        rows[name][0] = PAD
        for row, pairs in enumerate([(2, 1), (0,)]):
            done = 0
            for segment, pair in enumerate(pairs, start=1):
                tokens = ids[pair][ids[pair] != PAD]
                end = done + len(tokens)
                rows[name][:, row, done:end] = tokens, [segment] * len(tokens), range(len(tokens))
                done = end
    batch = {name: rows[name][0] for name in rows}
    batch |= {f"{name}_segments": rows[name][1] for name in rows}
    batch |= {f"{name}_positions": rows[name][2] for name in rows}
    packed = jax.jit(lambda params: task.loss_sums(params, batch))(parameters_of(CONFIG))
    for name, value in sums.items():
        assert float(packed[name]) == pytest.approx(float(value), rel=1e-5), name


def test_rows_of_padding_weigh_nothing(task, parameters_of):
    batch = {"inputs": INPUTS, "targets": np.full_like(TARGETS, PAD)}
    empty = task.loss_sums(parameters_of(CONFIG), batch)
    assert {name: float(value) for name, value in empty.items()} == dict.fromkeys(
        ("loss", "nll", "correct", "weight"), 0.0
    )


def test_dropout_needs_a_key(task, sums, parameters_of):
    batch = {"inputs": INPUTS, "targets": TARGETS}
    dropped = task.loss_sums(parameters_of(CONFIG), batch, key=jax.random.key(0))
    assert float(dropped["weight"]) == 10
    assert abs(float(dropped["loss"]) - float(sums["loss"])) > 0.01


def test_r_drop_adds_the_divergence_of_two_passes(task, sums, parameters_of):
    """Against whole logits of the same two passes, gradient included."""
    batch, key, alpha = {"inputs": INPUTS, "targets": TARGETS}, jax.random.key(3), 5.0
    inputs, targets = (jnp.repeat(jnp.asarray(ids), 2, axis=0) for ids in (INPUTS, TARGETS))

    def by_definition(params):
        output = task.model.apply(
            {"params": params},
            inputs,
            shift_right(targets, BOS),
            inputs_mask=inputs != PAD,
            deterministic=False,
            rngs={"dropout": key},
        )
        logits, weights = output.logits, targets != PAD
        losses = label_smoothed_cross_entropy(logits, targets, SMOOTHING).loss
        one, other = jax.nn.log_softmax(logits[0::2]), jax.nn.log_softmax(logits[1::2])
        forth = jnp.sum(jnp.exp(one) * (one - other), axis=-1)
        back = jnp.sum(jnp.exp(other) * (other - one), axis=-1)
        return jnp.sum(losses * weights) / 2 + alpha / 4 * jnp.sum((forth + back) * weights[0::2])

    def by_task(params, key, **options):
        settings = {"r_drop_alpha": alpha, "chunk_tokens": 4} | options
        sums = make_task(**settings).loss_sums(params, batch, key=key)
        return sums["loss"], sums

    params = parameters_of(CONFIG)
    wanted, wanted_gradient = jax.value_and_grad(by_definition)(params)
    (loss, found), gradient = jax.value_and_grad(by_task, has_aux=True)(params, key)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-5)
    assert float(found["weight"]) == 10 and 0 <= float(found["correct"]) <= 10
    for one, other in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted_gradient), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    plain = by_task(params, key, r_drop_alpha=0.0)[0]
    assert abs(float(plain) - float(loss)) > 0.1
    assert float(by_task(params, None)[0]) == pytest.approx(
        float(sums["loss"]), rel=1e-6
    )  # no dropout
