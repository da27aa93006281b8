"""The keys and values that decoding keeps: a plain value, passed in and returned."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_shape


class LayerCache(NamedTuple):
    """Keys and values of one attention: each `[B, S, N, H]`, or `[B, L, S, N, H]` if scanned."""

    key: jax.Array
    value: jax.Array


class KVCache(NamedTuple):
    """All that a decoding step needs besides the parameters.

    Attributes:
      self_attention: one `LayerCache` a layer (one in all if layers are scanned), rows B * W:
        the decoded tokens of each hypothesis. The rows are reordered with the beams.
      cross_attention: the same of the encoder's output, rows B: computed once, shared by the
        W hypotheses of a sentence.
      inputs_mask: bool `[B, 1, 1, S]`, True = a token of the source.
      index: int32 scalar, number of tokens written to `self_attention` so far.
    """

    self_attention: tuple[LayerCache, ...] | LayerCache
    cross_attention: tuple[LayerCache, ...] | LayerCache
    inputs_mask: jax.Array
    index: jax.Array


def write_cache(
    cache: LayerCache, key: jax.Array, value: jax.Array, index: jax.Array
) -> LayerCache:
    """Write T new keys and values at positions `index .. index + T - 1`.

    The caller sees to it that they fit: past the end the last rows would be overwritten.

    Args:
      cache: `[B, S, N, H]` each.
      key: `[B, T, N, H]`, T at most S.
      value: `[B, T, N, H]`.
      index: int32 scalar.

    Raises:
      ValueError: `key` or `value` is not of the cache's B, N and H, or longer than it; or `index`
        is a Python number at which they do not fit.
    """
    rows, room, *heads = cache.key.shape
    length = key.shape[1] if key.ndim == 4 else None
    check_shape("key", key, (rows, length, *heads), "[B, T, N, H] as in the cache")
    check_shape("value", value, (rows, length, *cache.value.shape[2:]), "[B, T, N, H], as key")
    if length > room:
        raise ValueError(f"{length} keys do not fit into a cache of {room}; make a longer one")
    if isinstance(index, int) and not 0 <= index <= room - length:
        raise ValueError(
            f"index={index}: {length} keys do not fit there into a cache of {room}; give 0 to "
            f"{room - length}"
        )
    start = (0, index, 0, 0)
    return LayerCache(
        jax.lax.dynamic_update_slice(cache.key, key.astype(cache.key.dtype), start),
        jax.lax.dynamic_update_slice(cache.value, value.astype(cache.value.dtype), start),
    )


def cache_mask(index: jax.Array, length: int, cache_length: int) -> jax.Array:
    """Causal mask of a step: the token at `index + t` sees cache positions `0 .. index + t`.

    Returns:
      bool `[1, 1, length, cache_length]`.
    """
    query = jax.lax.broadcasted_iota(jnp.int32, (length, cache_length), 0) + index
    key = jax.lax.broadcasted_iota(jnp.int32, (length, cache_length), 1)
    return (key <= query)[None, None]
