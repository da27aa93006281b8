"""Scaled dot-product attention (paper 3.2.1)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_floating, check_mask, check_shape
from jaxformer.ops.differentiation import with_backward_pass
from jaxformer.ops.dropout import dropout

MASKED = -1e30  # finite, so that a row without any key stays finite too


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    return_weights: bool = False,
):
    """`softmax(Q K^T / sqrt(H)) V` (paper 3.2.1, equation 1), for all heads at once.

    Scores and softmax are float32 whatever the dtype of the arguments. A query that may not attend
    to any key gives zeros. Forward mode: inside `jaxformer.ops.differentiation.plain_derivatives`.

    Args:
      query: `[B, T, N, H]`.
      key: `[B, S, N, H]`.
      value: `[B, S, N, H]`.
      mask: bool of four axes, broadcastable to `[B, N, T, S]`, True = may attend; None: everything.
      dropout_rate: of the attention weights; needs `dropout_key`.
      dropout_key: a `jax.random.key`; None: no dropout.
      return_weights: also return the weights, before dropout.

    Returns:
      `[B, T, N, H]` in the dtype of `value`; with `return_weights` a pair with float32
      `[B, N, T, S]`.

    Raises:
      ValueError: a shape or dtype differs from the above; only the mask is broadcast.
    """
    check_heads(query, key, value)
    if mask is not None:
        rows, length, heads, _ = query.shape
        check_mask("mask", mask, (rows, heads, length, key.shape[1]))
    scale = 1.0 / math.sqrt(query.shape[-1])
    scores = _scores(query * jnp.asarray(scale, query.dtype), key)
    if mask is not None:
        scores = jnp.where(mask, scores, MASKED)
    weights = jax.nn.softmax(scores, axis=-1)
    if mask is not None:
        weights = weights * jnp.any(mask, axis=-1, keepdims=True)
    attended = weights.astype(value.dtype)
    if dropout_key is not None:
        attended = dropout(attended, dropout_rate, dropout_key)
    out = jnp.einsum("BNTS,BSNH->BTNH", attended, value)
    return (out, weights) if return_weights else out


def _products(query, key):
    """`Q K^T` in float32; its backward pass casts the gradient to the dtype of Q."""
    return jnp.einsum("BTNH,BSNH->BNTS", query, key, preferred_element_type=jnp.float32)


def _scores_forward(query, key):
    return _products(query, key), (query, key)


def _scores_backward(saved, gradient):
    query, key = saved
    gradient = gradient.astype(query.dtype)
    of_query = jnp.einsum("BNTS,BSNH->BTNH", gradient, key)
    of_key = jnp.einsum("BNTS,BTNH->BSNH", gradient, query)
    return of_query.astype(query.dtype), of_key.astype(key.dtype)


_scores = with_backward_pass(_products, _scores_forward, _scores_backward)


def check_heads(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Refuse queries, keys and values that do not fit together.

    Args:
      query: `[B, T, N, H]`.
      key: `[B, S, N, H]`.
      value: `[B, S, N, any]`.

    Raises:
      ValueError: a size differs, or a dtype is not floating.
    """
    check_shape("query", query, (None,) * 4, "[B, T, N, H]")
    rows, _, heads, size = query.shape
    check_shape("key", key, (rows, None, heads, size), "[B, S, N, H] with B, N and H of query")
    check_shape("value", value, (*key.shape[:3], None), "[B, S, N, H] with B, S and N of key")
    for name, array in (("query", query), ("key", key), ("value", value)):
        check_floating(name, array)
