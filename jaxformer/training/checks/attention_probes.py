"""Random arguments for the attentions of a run, with the tokens that each must ignore."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.ops.attention_mask import AttentionMask, AttentionSite

PLANTED = 1e3  # for masked keys and values: far above all others, and representable in float16


class Probe(NamedTuple):
    """Random arguments of one attention.

    Attributes:
      query: `[B, T, N, H]`.
      key: `[B, S, N, H]`.
      value: `[B, S, N, H]`.
      cotangent: `[B, T, N, H]`, the gradient that comes back to the output.
      attention_mask: which keys a query may attend to.
      watched: bool `[B, T]`, the queries whose outputs the hidden keys must not change.
      hidden: bool `[B, S]`, the keys that no watched query may attend to.
    """

    query: Any
    key: Any
    value: Any
    cotangent: Any
    attention_mask: AttentionMask
    watched: Any
    hidden: Any


def draw_mask(rng: np.random.Generator, site: AttentionSite, rows: int) -> AttentionMask:
    """Random lengths of the keys, or random sentences in packed rows.

    Args:
      rng: source of randomness.
      site: the attention, with its shapes.
      rows: B, at least 3.
    """
    if site.packed:
        lengths = (site.queries, site.keys) if site.is_cross else (site.queries,)
        segments = _draw_segments(rng, rows, *lengths)
        return AttentionMask(site.causal, None, segments[0], segments[-1])
    if site.causal:
        return AttentionMask(causal=True)
    lengths = rng.integers(1, site.keys + 1, rows).astype(np.int32)
    lengths[:3] = site.keys, 1, 0  # the last batch of an epoch may have empty rows
    return AttentionMask(key_lengths=lengths)


def draw_probe(rng: np.random.Generator, site: AttentionSite, rows: int) -> Probe:
    """Normal numbers for `query [B, T, N, H]` and `key [B, S, N, H]` of a site.

    Args:
      rng: source of randomness.
      site: the attention, with its shapes.
      rows: B, at least 3.
    """
    attention_mask = draw_mask(rng, site, rows)
    query, key = site_arrays(site, rows)
    rows, queries, keys = *query.shape[:2], key.shape[1]
    arrays = (rng.standard_normal(x.shape).astype(x.dtype) for x in (query, key, key, query))
    watched = _watch(attention_mask, rows, queries)
    mask = attention_mask.to_mask(queries, keys)
    seen = True if mask is None else np.asarray(mask)[:, 0]
    seen = np.broadcast_to(seen, (rows, queries, keys)) & watched[:, :, None]
    return Probe(*arrays, attention_mask, watched, ~seen.any(axis=1))


def site_arrays(
    site: AttentionSite, rows: int
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of the queries and the keys of a site."""
    query, key = (
        jax.ShapeDtypeStruct((rows, length, site.num_heads, site.head_dim), site.dtype)
        for length in (site.queries, site.keys)
    )
    return query, key


def plant(probe: Probe) -> Probe:
    """The probe with other hidden keys and values, and gradients for watched queries only."""
    hidden, watched = probe.hidden[..., None, None], probe.watched[..., None, None]
    large = np.asarray(PLANTED, probe.key.dtype)
    return probe._replace(
        key=np.where(hidden, large, probe.key),
        value=np.where(hidden, large, probe.value),
        cotangent=np.where(watched, probe.cotangent, np.zeros_like(large)),
    )


def _draw_segments(rng, rows: int, *lengths: int) -> list[np.ndarray]:
    """int32 `[B, length]` each: some sentences a row, then padding; as many in each array."""
    counts = rng.integers(1, max(min(*lengths, 6), 2), rows)
    sides = []
    for length in lengths:
        segments = np.zeros((rows, length), np.int32)
        for row, count in enumerate(counts):
            inner = rng.choice(np.arange(1, length + 1), min(count, length), replace=False)
            starts = np.concatenate([[0], np.sort(inner)])
            for number, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True), 1):
                segments[row, start:end] = number
        sides.append(segments)
    return sides


def _watch(attention_mask: AttentionMask, rows: int, queries: int) -> np.ndarray:
    """bool `[B, T]`: the first half of a row, or of one of its sentences."""
    if attention_mask.query_segments is None:
        return np.broadcast_to(np.arange(queries) < (queries + 1) // 2, (rows, queries))
    segments = np.asarray(attention_mask.query_segments)
    last = segments.max(axis=1, keepdims=True)
    chosen = segments == (last + 1) // 2  # with sentences before and after it
    place = np.cumsum(chosen, axis=1)
    return chosen & (2 * place <= chosen.sum(axis=1, keepdims=True) + 1)
