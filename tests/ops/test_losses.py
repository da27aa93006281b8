import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.losses import (
    label_smoothed_cross_entropy,
    shift_right,
    two_pass_cross_entropy,
)

# Probabilities 1/7, 2/7 and 4/7.
LOGITS = jnp.log(jnp.array([1.0, 2.0, 4.0]))


def naive_loss(logits, targets, eps):
    """Cross-entropy against the smoothed distribution, with a one-hot array."""
    pieces = logits.shape[-1]
    wanted = (1.0 - eps) * jax.nn.one_hot(targets, pieces) + eps / pieces
    return -jnp.sum(wanted * jax.nn.log_softmax(logits.astype(jnp.float32)), axis=-1)


def sample():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 7)).astype(np.float32) * 3
    return jnp.asarray(logits), jnp.asarray(rng.integers(0, 7, (2, 5)).astype(np.int32))


def test_values_by_hand_on_three_pieces():
    plain = label_smoothed_cross_entropy(LOGITS, jnp.int32(2))
    assert float(plain.loss) == pytest.approx(math.log(7 / 4), abs=1e-6)
    assert float(plain.nll) == pytest.approx(0.5596158, abs=1e-6)
    # eps = 0.3: 0.8 on the target, 0.1 on each other: ln 7 - 0.8 ln 4 - 0.1 ln 2 - 0.1 ln 1
    smooth = label_smoothed_cross_entropy(LOGITS, jnp.int32(2), 0.3)
    assert float(smooth.loss) == pytest.approx(0.7675599, abs=1e-6)
    assert float(smooth.nll) == pytest.approx(0.5596158, abs=1e-6)
    assert float(smooth.correct) == 1.0


def test_gradient_by_hand_on_three_pieces():
    gradient = jax.grad(lambda z: label_smoothed_cross_entropy(z, jnp.int32(0), 0.3).loss)(LOGITS)
    np.testing.assert_allclose(gradient, [1 / 7 - 0.8, 2 / 7 - 0.1, 4 / 7 - 0.1], atol=1e-6)


def test_nll_has_the_gradient_of_the_unsmoothed_loss():
    gradient = jax.grad(lambda z: label_smoothed_cross_entropy(z, jnp.int32(0), 0.3).nll)(LOGITS)
    np.testing.assert_allclose(gradient, [1 / 7 - 1.0, 2 / 7, 4 / 7], atol=1e-6)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.5])
def test_equals_the_one_hot_formula_and_its_gradient(eps):
    logits, targets = sample()
    weights = jnp.linspace(0.0, 2.0, 10).reshape(2, 5)
    loss, gradient = jax.value_and_grad(
        lambda z: jnp.sum(weights * label_smoothed_cross_entropy(z, targets, eps).loss)
    )(logits)
    wanted, wanted_gradient = jax.value_and_grad(
        lambda z: jnp.sum(weights * naive_loss(z, targets, eps))
    )(logits)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, atol=1e-6)


def test_correct_is_one_where_no_logit_is_higher():
    logits = jnp.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [5.0, 5.0, 1.0], [5.0, 5.0, 1.0]])
    losses = label_smoothed_cross_entropy(logits, jnp.array([0, 2, 1, 2]), 0.1)
    np.testing.assert_array_equal(losses.correct, [1.0, 0.0, 1.0, 0.0])


def test_bfloat16_logits_are_widened_first():
    logits, targets = sample()
    low = logits.astype(jnp.bfloat16)
    losses = label_smoothed_cross_entropy(low, targets, 0.1)
    assert {x.dtype for x in losses} == {jnp.dtype("float32")}
    wide = label_smoothed_cross_entropy(low.astype(jnp.float32), targets, 0.1)
    np.testing.assert_array_equal(losses.loss, wide.loss)
    gradient = jax.grad(lambda z: label_smoothed_cross_entropy(z, targets, 0.1).loss.sum())(low)
    assert gradient.dtype == jnp.bfloat16
    exact = jax.grad(lambda z: naive_loss(z, targets, 0.1).sum())(low.astype(jnp.float32))
    np.testing.assert_allclose(gradient.astype(jnp.float32), exact, atol=4e-3)


def test_large_logits_stay_finite():
    losses = label_smoothed_cross_entropy(jnp.array([1e4, 0.0, -1e4]), jnp.int32(1), 0.0)
    assert float(losses.nll) == pytest.approx(1e4)


def test_shift_right_puts_bos_first_and_drops_the_last():
    targets = jnp.array([[5, 6, 1], [7, 1, 0]], jnp.int32)
    shifted = shift_right(targets, 2)
    assert shifted.dtype == jnp.int32
    np.testing.assert_array_equal(shifted, [[2, 5, 6], [2, 7, 1]])


def test_shift_right_puts_bos_at_each_packed_sentence():
    targets = jnp.array([[5, 6, 1, 8, 1, 0]], jnp.int32)
    positions = jnp.array([[0, 1, 2, 0, 1, 0]], jnp.int32)
    np.testing.assert_array_equal(shift_right(targets, 2, positions), [[2, 5, 6, 2, 8, 2]])


def test_two_passes_by_hand():
    others = jnp.log(jnp.array([2.0, 2.0, 4.0])) + 7.0  # 1/4, 1/4, 1/2; a shift changes nothing
    divergence = (1 / 7 - 1 / 4) * math.log(4 / 7) + (2 / 7 - 1 / 4) * math.log(8 / 7)
    divergence += (4 / 7 - 1 / 2) * math.log(8 / 7)
    for logits in ([LOGITS, others], [others, LOGITS]):
        found = two_pass_cross_entropy(jnp.stack(logits), jnp.int32(2), 0.0, 3.0)
        nll = (math.log(7 / 4) + math.log(2)) / 2
        assert float(found.nll) == pytest.approx(nll, abs=1e-6)
        assert float(found.loss) == pytest.approx(nll + 0.75 * divergence, abs=1e-6)
        assert float(found.correct) == 1.0
    same = two_pass_cross_entropy(jnp.stack([LOGITS, LOGITS]), jnp.int32(0), 0.3, 3.0)
    one = label_smoothed_cross_entropy(LOGITS, jnp.int32(0), 0.3)
    np.testing.assert_allclose(same, one, atol=1e-6)


@pytest.mark.parametrize("field", ["loss", "nll"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_of_two_passes_are_those_of_the_equation(field, dtype):
    draw = np.random.default_rng(2)
    logits = jnp.asarray(draw.normal(size=(3, 5, 2, 7)) * 3, dtype)
    targets = jnp.asarray(draw.integers(0, 7, (3, 5)), jnp.int32)
    weights = jnp.asarray(draw.normal(size=(3, 5)), jnp.float32)

    def by_equation(logits):
        both = jnp.repeat(targets[..., None], 2, axis=-1)
        eps = {"loss": 0.2, "nll": 0.0}[field]
        log_p, log_q = jnp.moveaxis(jax.nn.log_softmax(logits.astype(jnp.float32)), 2, 0)
        ratio = log_p - log_q
        divergence = jnp.sum((jnp.exp(log_p) - jnp.exp(log_q)) * ratio, axis=-1)
        losses = jnp.mean(naive_loss(logits, both, eps), axis=-1)
        losses += {"loss": 0.75 * divergence, "nll": 0.0}[field]
        return jnp.sum(weights * losses)

    def ours(logits):
        return jnp.sum(weights * getattr(two_pass_cross_entropy(logits, targets, 0.2, 3.0), field))

    values, wanted = jax.value_and_grad(ours)(logits), jax.value_and_grad(by_equation)(logits)
    assert values[1].dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 1e-2
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, tolerance, tolerance), values, wanted
    )


LOSSES = {
    "one pass": lambda z, t, eps=0.1: label_smoothed_cross_entropy(z[..., 0, :], t, eps),
    "two passes": lambda z, t, eps=0.1: two_pass_cross_entropy(z, t, eps, 1.0),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_what_a_loss_refuses(loss):
    logits, targets = jnp.zeros((2, 3, 2, 5)), jnp.zeros((2, 3), jnp.int32)
    assert loss(logits, targets).loss.shape == (2, 3)
    for eps in (-0.1, 1.0, 1.5, math.nan):
        with pytest.raises(ValueError, match=f"label_smoothing={eps}.*0 to below 1"):
            loss(logits, targets, eps)
    for shape in ((2, 1), (1, 3), (3,), (3, 2), (2, 3, 1)):  # (2, 1) was broadcast without a word
        with pytest.raises(ValueError, match=r"\(2, 3|2, any\)"):
            loss(logits, jnp.zeros(shape, jnp.int32))
    for dtype in (jnp.float32, jnp.bool_):
        with pytest.raises(ValueError, match=f"targets is {jnp.dtype(dtype)}.*int32"):
            loss(logits, targets.astype(dtype))


@pytest.mark.parametrize("passes", [1, 3])
def test_two_passes_are_two(passes):
    with pytest.raises(ValueError, match=rf"logits.*\(3, {passes}, 5\).*\[..., 2, V\]"):
        two_pass_cross_entropy(jnp.zeros((3, passes, 5)), jnp.zeros(3, jnp.int32), 0.1, 1.0)


@pytest.mark.parametrize("alpha", [-1.0, math.nan, math.inf])
def test_a_weight_of_the_divergence_that_is_none_is_refused(alpha):
    with pytest.raises(ValueError, match=f"alpha={alpha}.*at least 0"):
        two_pass_cross_entropy(jnp.zeros((3, 2, 5)), jnp.zeros(3, jnp.int32), 0.1, alpha)


def test_ids_beyond_the_vocabulary_give_nan():
    losses = label_smoothed_cross_entropy(jnp.zeros((2, 5)), jnp.array([4, 5], jnp.int32))
    np.testing.assert_array_equal(np.isnan(losses.loss), [False, True])


@pytest.mark.parametrize("rows", [0, 2])
def test_no_rows_are_no_losses(rows):
    losses = label_smoothed_cross_entropy(jnp.zeros((rows, 5)), jnp.zeros(rows, jnp.int32))
    assert losses.loss.shape == (rows,)


@pytest.mark.parametrize(
    ("targets", "positions", "words"),
    [
        (np.zeros((2, 0), np.int32), None, r"targets has shape \(2, 0\).*at least one"),
        (np.zeros((3,), np.int32), None, r"targets has shape \(3,\).*\[B, T\]"),
        (np.zeros((2, 3, 4), np.int32), None, r"targets has shape \(2, 3, 4\).*\[B, T\]"),
        (np.zeros((2, 3), np.float32), None, "targets is float32.*int32"),
        (np.zeros((2, 3), np.int32), np.zeros((1, 3), np.int32), r"positions.*\(1, 3\).*\(2, 3\)"),
        (np.zeros((1, 3), np.int32), np.zeros((2, 3), np.int32), r"positions.*\(2, 3\).*\(1, 3\)"),
    ],
)
def test_what_shift_right_refuses(targets, positions, words):
    with pytest.raises(ValueError, match=words):
        shift_right(targets, 2, positions)
