"""Attention masks: bool arrays, True = may attend, broadcastable to `[B, 1, T, S]`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_bool, check_integers, check_shape


def padding_mask(tokens: jax.Array, pad_id: int) -> jax.Array:
    """Mask of the keys that are real tokens.

    Args:
      tokens: int32 `[B, S]`.
      pad_id: the padding id; every other id counts as a token.

    Returns:
      bool `[B, 1, 1, S]`.

    Raises:
      ValueError: `tokens` is not integer `[B, S]`.
    """
    check_shape("tokens", tokens, (None, None), "[B, S]")
    check_integers("tokens", tokens)
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(length: int) -> jax.Array:
    """Mask that lets position t see positions 0..t (paper 3.2.3).

    Returns:
      bool `[1, 1, length, length]`.
    """
    query = jax.lax.broadcasted_iota(jnp.int32, (length, length), 0)
    key = jax.lax.broadcasted_iota(jnp.int32, (length, length), 1)
    return (key <= query)[None, None]


def segment_mask(query_segments: jax.Array, key_segments: jax.Array) -> jax.Array:
    """Mask that separates packed sentence pairs: a token sees only its own segment.

    Args:
      query_segments: int32 `[B, T]`, sentences numbered from 1, 0 = padding.
      key_segments: int32 `[B, S]`, the same.

    Returns:
      bool `[B, 1, T, S]`; padding sees nothing and is seen by nothing.

    Raises:
      ValueError: the axes or numbers of rows differ, or the segments are not integers.
    """
    check_shape("query_segments", query_segments, (None, None), "[B, T]")
    check_shape("key_segments", key_segments, (query_segments.shape[0], None), "[B, S]")
    check_integers("query_segments", query_segments)
    check_integers("key_segments", key_segments)
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (key_segments != 0)[:, None, :])[:, None]


def combine_masks(*masks: jax.Array | None) -> jax.Array | None:
    """Logical and of all masks that are not None; None if there is none.

    Raises:
      ValueError: a mask is not bool; the and of integers would be bitwise.
    """
    present = [mask for mask in masks if mask is not None]
    for number, mask in enumerate(masks):
        if mask is not None:
            check_bool(f"masks[{number}]", mask)
    if not present:
        return None
    combined = present[0]
    for mask in present[1:]:
        combined = combined & mask
    return combined
