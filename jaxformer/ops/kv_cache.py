"""The keys and values that decoding keeps: a plain value, passed in and returned."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_shape


class SelfAttentionCache(NamedTuple):
    """Keys and values of the tokens that a self-attention has read; every call adds to them.

    Each is `[R, C, N, H]` with C columns, one a token, or `[R, L, C, N, H]` if layers are scanned.
    """

    key: jax.Array
    value: jax.Array


class CrossAttentionCache(NamedTuple):
    """Keys and values of the encoder's output: computed once, and changed by no call.

    Each is `[B, S, N, H]`, or `[B, L, S, N, H]` if layers are scanned.
    """

    key: jax.Array
    value: jax.Array


class KVCache(NamedTuple):
    """All that a decoding step needs besides the parameters.

    A stack without cross-attention has no `cross_attention` and no `inputs_mask`.

    Attributes:
      self_attention: one `SelfAttentionCache` a layer (one in all if layers are scanned), rows
        R = B * W: the tokens of each hypothesis. The rows are reordered with the beams.
      index: int32 scalar, columns of `self_attention` that are written.
      starts: int32 `[R]`, the column of each row's first token; padding is before it. None: 0.
      cross_attention: one `CrossAttentionCache` a layer, rows B: shared by the W hypotheses of a
        sentence.
      inputs_mask: bool `[B, 1, 1, S]`, True = a token of the source.
    """

    self_attention: tuple[SelfAttentionCache, ...] | SelfAttentionCache
    index: jax.Array
    starts: jax.Array | None = None
    cross_attention: tuple[CrossAttentionCache, ...] | CrossAttentionCache | None = None
    inputs_mask: jax.Array | None = None


def empty_cache(
    rows: int, columns: int, heads: int, head_dim: int, dtype, *, scanned_layers: int = 0
) -> SelfAttentionCache:
    """Zeros for the keys and values of `columns` tokens.

    Args:
      rows: R.
      columns: C.
      heads: N.
      head_dim: H.
      dtype: of the computation.
      scanned_layers: L, of layers that share one cache; 0: the cache of one layer.
    """
    shape = (rows, *((scanned_layers,) if scanned_layers else ()), columns, heads, head_dim)
    return SelfAttentionCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def write_cache(
    cache: SelfAttentionCache, key: jax.Array, value: jax.Array, index: jax.Array
) -> SelfAttentionCache:
    """Write T new keys and values to the columns `index .. index + T - 1`.

    The caller sees to it that they fit: past the end the last columns would be overwritten.

    Args:
      cache: `[R, C, N, H]` each.
      key: `[R, T, N, H]`, T at most C.
      value: `[R, T, N, H]`.
      index: int32 scalar.

    Raises:
      ValueError: `key` or `value` is not of the cache's R, N and H, or longer than it; or `index`
        is a Python number at which they do not fit.
    """
    rows, room, *heads = cache.key.shape
    length = key.shape[1] if key.ndim == 4 else None
    check_shape("key", key, (rows, length, *heads), "[R, T, N, H] as in the cache")
    check_shape("value", value, (rows, length, *cache.value.shape[2:]), "[R, T, N, H], as key")
    if length > room:
        raise ValueError(f"{length} keys do not fit into a cache of {room}; make a longer one")
    if isinstance(index, int) and not 0 <= index <= room - length:
        raise ValueError(
            f"index={index}: {length} keys do not fit there into a cache of {room}; give 0 to "
            f"{room - length}"
        )
    start = (0, index, 0, 0)
    return SelfAttentionCache(
        jax.lax.dynamic_update_slice(cache.key, key.astype(cache.key.dtype), start),
        jax.lax.dynamic_update_slice(cache.value, value.astype(cache.value.dtype), start),
    )


def cache_mask(
    index: jax.Array, length: int, cache_length: int, starts: jax.Array | None = None
) -> jax.Array:
    """Causal mask of a step: the token in column `index + t` sees columns `start .. index + t`.

    Args:
      index: int32 scalar, the first new column.
      length: T, number of new columns.
      cache_length: C, columns of the cache.
      starts: int32 `[R]`, the first column of each row that holds a token; None: 0.

    Returns:
      bool `[1, 1, T, C]`, or `[R, 1, T, C]` with `starts`; padding sees nothing.
    """
    query = jax.lax.broadcasted_iota(jnp.int32, (length, cache_length), 0) + index
    key = jax.lax.broadcasted_iota(jnp.int32, (length, cache_length), 1)
    mask = (key <= query)[None, None]
    if starts is None:
        return mask
    return mask & (key[None] >= starts[:, None, None])[:, None]


def token_positions(
    index: jax.Array | int, length: int, starts: jax.Array | None = None
) -> jax.Array:
    """Positions of the tokens in the columns `index .. index + T - 1`.

    Args:
      index: int32 scalar.
      length: T.
      starts: int32 `[R]`, the column of position 0 in each row; None: 0.

    Returns:
      int32 `[1, T]`, or `[R, T]` with `starts`; padding before the start is at position 0.
    """
    columns = jnp.arange(length, dtype=jnp.int32)[None] + index
    return columns if starts is None else jnp.maximum(columns - starts[:, None], 0)
