"""The training loss, and the shift that turns targets into decoder inputs."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_integers, check_shape
from jaxformer.ops.differentiation import with_backward_pass


class TokenLosses(NamedTuple):
    """Per-token results of the loss, all float32 of the targets' shape.

    Attributes:
      loss: label-smoothed cross-entropy in nats.
      nll: negative log-likelihood of the target in nats, without smoothing.
      correct: 1 where no logit is above the target's, else 0.
    """

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array


def shift_right(targets: jax.Array, bos_id: int, positions: jax.Array | None = None) -> jax.Array:
    """Decoder inputs for teacher forcing: BOS, then the targets without the last.

    Args:
      targets: int32 `[B, T]`.
      bos_id: id that starts each sentence.
      positions: int32 `[B, T]` of packed rows; BOS goes where a position is 0.

    Returns:
      int32 `[B, T]`.

    Raises:
      ValueError: `targets` is not integer `[B, T]` with T > 0, or `positions` has another shape.
    """
    check_shape("targets", targets, (None, None), "[B, T]")
    check_integers("targets", targets)
    if targets.shape[1] == 0:
        raise ValueError(f"targets has shape {targets.shape}; give at least one token per row")
    if positions is not None:
        check_shape("positions", positions, targets.shape, "[B, T]")
    shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
    return shifted if positions is None else jnp.where(positions == 0, bos_id, shifted)


@jax.custom_jvp
def _max_and_sum(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both over the last axis.

    One joint reduction reads `x` once; XLA for GPUs does not merge two by itself. On a CPU the
    joint reduction takes twice as long as two. The tangent of the maximum is omitted: it cancels in
    `log sum exp`, and JAX's own for a joint reduction is a tree of slices.
    """

    def separately(x):
        return jnp.max(x, axis=-1), jnp.sum(x, axis=-1)

    def in_one_pass(x):
        def combine(one, other):
            return jnp.maximum(one[0], other[0]), one[1] + other[1]

        return jax.lax.reduce(
            (x, x), (jnp.float32(-jnp.inf), jnp.float32(0.0)), combine, (x.ndim - 1,)
        )

    return jax.lax.platform_dependent(x, cuda=in_one_pass, default=separately)


@_max_and_sum.defjvp
def _max_and_sum_tangents(primals, tangents):
    highest, total = _max_and_sum(*primals)
    return (highest, total), (jnp.zeros_like(highest), jnp.sum(tangents[0], axis=-1))


def _smoothed_losses(logits, targets, label_smoothing):
    return _token_losses_forward(logits, targets, label_smoothing)[0]


def _token_losses_forward(logits, targets, label_smoothing):
    wide = logits.astype(jnp.float32)
    highest, total = _max_and_sum(wide)
    log_sum = highest + jnp.log(jnp.sum(jnp.exp(wide - highest[..., None]), axis=-1))
    chosen = jnp.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    nll = log_sum - chosen
    loss = log_sum - (1.0 - label_smoothing) * chosen - label_smoothing / wide.shape[-1] * total
    losses = TokenLosses(loss, nll, (chosen >= highest).astype(jnp.float32))
    return losses, (logits, targets, log_sum)


def _token_losses_backward(label_smoothing, saved, gradients):
    """`softmax - (1 - eps) [v = target] - eps / V` for the loss, eps = 0 for nll, in one pass."""
    logits, targets, log_sum = saved
    pieces = logits.shape[-1]
    is_target = targets[..., None] == jax.lax.broadcasted_iota(
        targets.dtype, logits.shape, logits.ndim - 1
    )
    probability = jnp.exp(logits.astype(jnp.float32) - log_sum[..., None])
    of_loss, of_nll = gradients.loss[..., None], gradients.nll[..., None]
    at_target = (1.0 - label_smoothing) * of_loss + of_nll
    gradient = probability * (of_loss + of_nll) - label_smoothing / pieces * of_loss
    return (gradient - jnp.where(is_target, at_target, 0.0)).astype(logits.dtype), None


_token_losses = with_backward_pass(
    _smoothed_losses, _token_losses_forward, _token_losses_backward, nondiff_argnums=(2,)
)


def label_smoothed_cross_entropy(
    logits: jax.Array, targets: jax.Array, label_smoothing: float = 0.0
) -> TokenLosses:
    """Cross-entropy against `(1 - eps) [v = target] + eps / V` (paper 5.4), token by token.

    `loss = logsumexp(z) - (1 - eps) z[target] - eps mean(z)`: eps is spread over all V pieces,
    including the target. No one-hot array is made, forward or backward. The result is float32
    whatever the dtype of the logits. Forward mode: inside
    `jaxformer.ops.differentiation.plain_derivatives`.

    Args:
      logits: floating `[..., V]`.
      targets: int32 `[...]`, ids from 0 to V - 1. None is ignored: give padding the weight 0 where
        the losses are summed. An id of V or more gives NaN; a negative one counts from the end.
      label_smoothing: eps in [0, 1).

    Returns:
      `TokenLosses`; `correct` has no gradient.

    Raises:
      ValueError: `targets` is not integer or not of the shape of `logits` without V, or
        `label_smoothing` is out of range.
    """
    check_shape("targets", targets, logits.shape[:-1], "one id for each row of V logits")
    check_integers("targets", targets)
    _check_label_smoothing(label_smoothing)
    return _token_losses(logits, targets, label_smoothing)


def _divided_losses(logits, targets, label_smoothing, alpha):
    return _two_pass_losses_forward(logits, targets, label_smoothing, alpha)[0]


def _log_probabilities(logits, log_sum):
    """Log-probabilities of both passes, `[..., V]` each."""
    wide = logits.astype(jnp.float32) - log_sum[..., None]
    return wide[..., 0, :], wide[..., 1, :]


def _two_pass_losses_forward(logits, targets, label_smoothing, alpha):
    both = jnp.stack([targets, targets], axis=-1)
    losses, (_, _, log_sum) = _token_losses_forward(logits, both, label_smoothing)
    log_p, log_q = _log_probabilities(logits, log_sum)
    of_first = jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
    of_second = jnp.sum(jnp.exp(log_q) * (log_q - log_p), axis=-1)
    means = TokenLosses(*(jnp.mean(value, axis=-1) for value in losses))
    means = means._replace(loss=means.loss + 0.25 * alpha * (of_first + of_second))
    return means, (logits, targets, log_sum, of_first, of_second)


def _two_pass_losses_backward(label_smoothing, alpha, saved, gradients):
    """Half of `_token_losses_backward` per pass, plus the divergence: for the first pass
    `alpha / 4 (p (log p - log q - KL(p | q)) + p - q)`. Reads the logits once."""
    logits, targets, log_sum, of_first, of_second = saved
    pieces = logits.shape[-1]
    log_p, log_q = _log_probabilities(logits, log_sum)
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    is_target = targets[..., None] == jax.lax.broadcasted_iota(targets.dtype, p.shape, p.ndim - 1)
    of_loss, of_nll = 0.5 * gradients.loss[..., None], 0.5 * gradients.nll[..., None]
    at_target = jnp.where(is_target, (1.0 - label_smoothing) * of_loss + of_nll, 0.0)
    constant = at_target + label_smoothing / pieces * of_loss
    weight = 0.5 * alpha * of_loss
    ratio, apart = log_p - log_q, weight * (p - q)
    first = p * (of_loss + of_nll + weight * (ratio - of_first[..., None])) + apart
    second = q * (of_loss + of_nll - weight * (ratio + of_second[..., None])) - apart
    both = jnp.stack([first - constant, second - constant], axis=-2)
    return both.astype(logits.dtype), None


_two_pass_losses = with_backward_pass(
    _divided_losses, _two_pass_losses_forward, _two_pass_losses_backward, nondiff_argnums=(2, 3)
)


def two_pass_cross_entropy(
    logits: jax.Array, targets: jax.Array, label_smoothing: float, alpha: float
) -> TokenLosses:
    """R-Drop (Liang et al. 2021): the loss of two passes p and q, and their divergence.

    `loss = (L_p + L_q) / 2 + alpha / 4 (KL(p | q) + KL(q | p))`, half the paper's, with L of
    `label_smoothed_cross_entropy` and `KL(p | q) = sum_v p_v (log p_v - log q_v)` in nats; `nll`
    and `correct` are means over the two passes.
    Forward mode: inside `jaxformer.ops.differentiation.plain_derivatives`.

    Args:
      logits: floating `[..., 2, V]`.
      targets: int32 `[...]`.
      label_smoothing: eps in [0, 1).
      alpha: weight of the divergence, at least 0.

    Returns:
      `TokenLosses` of the targets' shape; `correct` has no gradient.

    Raises:
      ValueError: as for `label_smoothed_cross_entropy`, the axis of the passes is not 2, or `alpha`
        is out of range.
    """
    check_shape("logits", logits, (*targets.shape, 2, None), "[..., 2, V]")
    check_integers("targets", targets)
    _check_label_smoothing(label_smoothing)
    if not 0.0 <= alpha < float("inf"):
        raise ValueError(f"alpha={alpha}; give a finite weight of at least 0")
    return _two_pass_losses(logits, targets, label_smoothing, alpha)


def _check_label_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(
            f"label_smoothing={label_smoothing}; give a value from 0 to below 1, such as 0.1"
        )
