"""The training loss and the shift that makes decoder inputs out of targets."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp


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
    """Decoder inputs of teacher forcing: BOS, then the targets without the last.

    Args:
      targets: int32 `[B, T]`.
      bos_id: id that starts each sentence.
      positions: int32 `[B, T]` of packed rows; BOS is put where a position is 0.

    Returns:
      int32 `[B, T]`.
    """
    shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=bos_id)
    return shifted if positions is None else jnp.where(positions == 0, bos_id, shifted)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _token_losses(logits, targets, label_smoothing):
    return _token_losses_forward(logits, targets, label_smoothing)[0]


def _token_losses_forward(logits, targets, label_smoothing):
    wide = logits.astype(jnp.float32)
    highest = jnp.max(wide, axis=-1)
    log_sum = highest + jnp.log(jnp.sum(jnp.exp(wide - highest[..., None]), axis=-1))
    chosen = jnp.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    nll = log_sum - chosen
    loss = log_sum - (1.0 - label_smoothing) * chosen - label_smoothing * jnp.mean(wide, axis=-1)
    losses = TokenLosses(loss, nll, (chosen >= highest).astype(jnp.float32))
    return losses, (logits, targets, log_sum)


def _token_losses_backward(label_smoothing, saved, gradients):
    """`softmax - (1 - eps) [v = target] - eps / V` for the loss, eps = 0 for nll; in one pass."""
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


_token_losses.defvjp(_token_losses_forward, _token_losses_backward)


def label_smoothed_cross_entropy(
    logits: jax.Array, targets: jax.Array, label_smoothing: float = 0.0
) -> TokenLosses:
    """Cross-entropy against `(1 - eps) [v = target] + eps / V` (paper 5.4), token by token.

    `loss = logsumexp(z) - (1 - eps) z[target] - eps mean(z)`: eps is spread over all V pieces, the
    target included. No one-hot array is made, forward or backward. Float32 whatever the logits'.

    Args:
      logits: floating `[..., V]`.
      targets: int32 `[...]`.
      label_smoothing: eps in [0, 1).

    Returns:
      `TokenLosses`; `correct` has no gradient.
    """
    return _token_losses(logits, targets, label_smoothing)


def symmetric_divergence(logits: jax.Array, others: jax.Array) -> jax.Array:
    """`KL(p | q) + KL(q | p) = sum_v (p_v - q_v) (log p_v - log q_v)` of two softmaxes, in nats.

    Args:
      logits: floating `[..., V]` of p.
      others: floating `[..., V]` of q.

    Returns:
      float32 `[...]`.
    """
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    log_q = jax.nn.log_softmax(others.astype(jnp.float32))
    return jnp.sum((jnp.exp(log_p) - jnp.exp(log_q)) * (log_p - log_q), axis=-1)
