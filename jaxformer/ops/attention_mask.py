"""Attention masks described by their structure, since fused kernels take no bool array."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_integers, check_mask, check_shape
from jaxformer.ops.masks import causal_mask, combine_masks, segment_mask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AttentionMask:
    """Which keys a query may attend to: those that every field allows.

    Attributes:
      causal: query t sees keys 0..t (paper 3.2.3).
      key_lengths: int32 `[B]`, keys of a row before its padding, which must be at its end.
      query_segments: int32 `[B, T]` of packed rows, sentences from 1, 0 = padding.
      key_segments: int32 `[B, S]`, the same.
      mask: bool, broadcastable to `[B, 1, T, S]`, for what the others cannot express (a cache,
        padding elsewhere).
    """

    causal: bool = dataclasses.field(default=False, metadata={"static": True})
    key_lengths: jax.Array | None = None
    query_segments: jax.Array | None = None
    key_segments: jax.Array | None = None
    mask: jax.Array | None = None

    def check(self, query_shape: tuple[int, int, int, int], key_length: int) -> None:
        """Refuse fields that do not fit an attention of these sizes.

        Args:
          query_shape: B, T, N and H.
          key_length: S.

        Raises:
          ValueError: a shape or dtype is wrong, or only one of the segments is given.
        """
        rows, length, heads, _ = query_shape
        if self.key_lengths is not None:
            check_shape("key_lengths", self.key_lengths, (rows,), "[B]")
            check_integers("key_lengths", self.key_lengths)
        if (self.query_segments is None) != (self.key_segments is None):
            missing = "query_segments" if self.query_segments is None else "key_segments"
            raise ValueError(f"{missing}=None; give the segments of queries and keys, or neither")
        if self.query_segments is not None:
            check_shape("query_segments", self.query_segments, (rows, length), "[B, T]")
            check_shape("key_segments", self.key_segments, (rows, key_length), "[B, S]")
        if self.mask is not None:
            check_mask("mask", self.mask, (rows, heads, length, key_length))

    def to_mask(self, query_length: int, key_length: int) -> jax.Array | None:
        """The same as bool, broadcastable to `[B, 1, T, S]`; None: everything is allowed."""
        causal = lengths = segments = None
        if self.causal:
            causal = causal_mask(max(query_length, key_length))[..., :query_length, :key_length]
        if self.key_lengths is not None:
            position = jnp.arange(key_length, dtype=jnp.int32)
            lengths = (position[None] < self.key_lengths[:, None])[:, None, None, :]
        if self.query_segments is not None:
            segments = segment_mask(self.query_segments, self.key_segments)
        return combine_masks(causal, lengths, segments, self.mask)


EVERYTHING = AttentionMask()


class ModelMasks(NamedTuple):
    """The masks of the encoder's and the decoder's self-attention, and of cross-attention."""

    encoder: AttentionMask
    decoder: AttentionMask
    cross: AttentionMask


def model_masks(
    *,
    inputs_lengths: jax.Array | None = None,
    inputs_mask: jax.Array | None = None,
    inputs_segments: jax.Array | None = None,
    targets_segments: jax.Array | None = None,
) -> ModelMasks:
    """The mask of each attention of an encoder-decoder, without a cache.

    Args:
      inputs_lengths: int32 `[B]`, source tokens of rows whose padding is at the end.
      inputs_mask: bool `[B, S]`, True = a token, for padding anywhere; no fused kernel takes it.
      inputs_segments: int32 `[B, S]` of packed rows.
      targets_segments: int32 `[B, T]` of packed rows.

    Returns:
      The three masks.
    """
    mask = None if inputs_mask is None else inputs_mask[:, None, None, :]
    return ModelMasks(
        encoder=AttentionMask(False, inputs_lengths, inputs_segments, inputs_segments, mask),
        decoder=AttentionMask(True, None, targets_segments, targets_segments),
        cross=AttentionMask(
            False,
            inputs_lengths,
            targets_segments,
            None if targets_segments is None else inputs_segments,
            mask,
        ),
    )


class AttentionSite(NamedTuple):
    """One kind of attention in a model, for a batch of some shape.

    Attributes:
      name: `encoder`, for example.
      queries: T, positions that attend.
      keys: S, positions that are attended to.
      num_heads: N.
      head_dim: H.
      dtype: of queries, keys and values.
      implementation: as configured; `auto` leaves the choice to `ops.attention_choice`.
      causal: query t sees keys 0..t.
      packed: several sentences a row, by their segments; else padding at the end of rows, unless it
        is causal.
      is_cross: queries and keys are of two sequences.
      dropout: on the weights, in training.
    """

    name: str
    queries: int
    keys: int
    num_heads: int
    head_dim: int
    dtype: str
    implementation: str
    causal: bool = False
    packed: bool = False
    is_cross: bool = False
    dropout: bool = False
