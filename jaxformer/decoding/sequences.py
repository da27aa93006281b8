"""Token sequences in their slots: how strategies begin, extend and collect them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.decoding.engine import DecodingResult, SearchSpace, Step
from jaxformer.decoding.prompts import Prompt

NEVER = float("-inf")  # log-probability of an empty slot


class Sequences(NamedTuple):
    """Slots for finished or growing token sequences; the state of `Greedy` and `Sample`."""

    tokens: jax.Array  # [B, W, T] int32, pad_id where not yet filled
    lengths: jax.Array  # [B, W] int32
    log_probs: jax.Array  # [B, W] float32, -inf: the slot is empty
    scores: jax.Array  # [B, W] float32
    truncated: jax.Array  # [B, W] bool


def empty(space: SearchSpace, width: int, log_prob: float) -> Sequences:
    """Slots that nothing is written to, all of one log-probability."""
    shape = (space.batch_size, width)
    return Sequences(
        tokens=jnp.full((*shape, space.max_length), space.pad_id, jnp.int32),
        lengths=jnp.zeros(shape, jnp.int32),
        log_probs=jnp.full(shape, log_prob, jnp.float32),
        scores=jnp.full(shape, NEVER, jnp.float32),
        truncated=jnp.zeros(shape, bool),
    )


def begin(space: SearchSpace, width: int, prompt: Prompt | None) -> Sequences:
    """Sequences that hold nothing but their prompt, alive and without a score."""
    if prompt is None:
        return empty(space, width, 0.0)
    shape = (space.batch_size, width)
    tokens = jnp.broadcast_to(prompt.tokens[:, None], (*shape, space.max_length))
    return empty(space, width, 0.0)._replace(
        tokens=tokens,
        lengths=jnp.broadcast_to(prompt.lengths[:, None], shape),
        log_probs=jnp.broadcast_to(prompt.log_probs[:, None], shape),
    )


def write_token(sequences: jax.Array, tokens: jax.Array, index: jax.Array) -> jax.Array:
    """Put `tokens [B, W]` at position `index`, one or `[B]`, of `sequences [B, W, T]`."""
    if index.ndim == 0:
        return jax.lax.dynamic_update_index_in_dim(sequences, tokens, index, axis=2)
    places = jnp.arange(sequences.shape[2], dtype=jnp.int32)[None, None]
    return jnp.where(places == index[:, None, None], tokens[:, :, None], sequences)


def ended_lengths(step: Step, like: jax.Array) -> jax.Array:
    """Tokens of a hypothesis that ends at this step, int32 of the shape `[B, ...]` of `like`."""
    if step.index.ndim == 0:
        return jnp.full_like(like, step.index + 1)
    return jnp.broadcast_to(jnp.expand_dims(step.index + 1, range(1, like.ndim)), like.shape)


def collect(space: SearchSpace, sequences: Sequences) -> DecodingResult:
    """Blank the slots of probability zero and count the others; NaN counts as a hypothesis."""
    filled = (sequences.lengths > 0) & (sequences.log_probs != NEVER)  # [B, W]
    return DecodingResult(
        tokens=jnp.where(filled[:, :, None], sequences.tokens, space.pad_id),
        lengths=jnp.where(filled, sequences.lengths, 0),
        log_probs=jnp.where(filled, sequences.log_probs, NEVER),
        scores=jnp.where(filled, sequences.scores, NEVER),
        truncated=sequences.truncated & filled,
        num_hypotheses=jnp.sum(filled, axis=1, dtype=jnp.int32),
    )


def extend(
    space: SearchSpace, step: Step, log_probs: jax.Array, chosen: jax.Array, state: Sequences
) -> tuple[Sequences, jax.Array, None]:
    """Append `chosen [B, W]`, or EOS at the limit, to the sequences."""
    tokens = jnp.where(step.at_limit[:, None], space.eos_id, chosen)  # [B, W]
    gain = jnp.take_along_axis(log_probs, tokens[:, :, None], axis=2)[:, :, 0]  # [B, W]
    total = state.log_probs + gain
    state = Sequences(
        tokens=write_token(state.tokens, tokens, step.index),
        lengths=state.lengths + 1,
        log_probs=total,
        scores=total,
        truncated=tokens != chosen,
    )
    return state, tokens, None


def last_is_eos(space: SearchSpace, state: Sequences) -> jax.Array:
    """[B, W] bool: the sequence has ended."""
    last = jnp.maximum(state.lengths - 1, 0)[:, :, None]
    tokens = jnp.take_along_axis(state.tokens, last, axis=2)[:, :, 0]
    return (tokens == space.eos_id) & (state.lengths > 0)
