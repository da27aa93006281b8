"""What hypotheses begin with: prompts of a language model, forced prefixes of a translation.

Prompts are read in one pass of the model. For that they are right-aligned: the P + 1 columns of a
row are padding, BOS and its prompt, so that the last token of every prompt is in column P, and one
scalar counts the columns of all rows. Row b starts in column `P - prompt_lengths[b]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError


class Prompt(NamedTuple):
    """The prompts of a batch, as a strategy begins its hypotheses with them."""

    tokens: jax.Array  # [B, T] int32, room for a whole hypothesis; pad_id after the prompt
    lengths: jax.Array  # [B] int32, 0: none
    log_probs: jax.Array  # [B] float32, sum of log p over the tokens; 0 if they do not count


def check_prompts(
    prompts: np.ndarray,
    prompt_lengths: np.ndarray,
    max_lengths: np.ndarray,
    *,
    eos_id: int,
    vocab_size: int,
    row: str = "prompts[{}]",
    limit_name: str = "max_lengths",
) -> None:
    """Refuse prompts that no hypothesis can begin with; call it before `jax.jit`.

    Args:
      prompts: int `[B, P]`.
      prompt_lengths: int `[B]`.
      max_lengths: int `[B]`, limits of the hypotheses, EOS included.
      eos_id: of the target vocabulary.
      vocab_size: V.
      row: what messages call row `{}`.
      limit_name: what they call the limits.

    Raises:
      InputError: a prompt holds EOS or an id outside of the vocabulary, leaves no room for EOS, or
        has more tokens than its row of `prompts`.
    """
    prompts, prompt_lengths = np.asarray(prompts), np.asarray(prompt_lengths)
    for number, (tokens, length, limit) in enumerate(
        zip(prompts, prompt_lengths, np.asarray(max_lengths), strict=True)
    ):
        name = row.format(number)
        if not 0 <= length <= len(tokens):
            raise InputError(
                f"{name}: prompt_lengths={length} must be between 0 and {len(tokens)}, the columns "
                "of prompts"
            )
        for place, token in enumerate(tokens[:length]):
            if not 0 <= token < vocab_size:
                raise InputError(
                    f"{name}: token {place} is {token}, which is not in the vocabulary; give ids "
                    f"from 0 to {vocab_size - 1}"
                )
            if token == eos_id:
                raise InputError(
                    f"{name}: token {place} is {token}, EOS, after which nothing is generated; "
                    "leave it out"
                )
        if length and length >= limit:
            raise InputError(
                f"{name}: {length} tokens and EOS are more than the limit of {limit} tokens; give "
                f"a shorter one or raise {limit_name}"
            )


def align_right(
    prompts: jax.Array, prompt_lengths: jax.Array, *, bos_id: int, pad_id: int
) -> tuple[jax.Array, jax.Array]:
    """Padding, BOS and prompt of each row.

    Args:
      prompts: int32 `[B, P]`; of row b the first `prompt_lengths[b]` count.
      prompt_lengths: int32 `[B]`.
      bos_id, pad_id: of the target vocabulary.

    Returns:
      The columns int32 `[B, P + 1]`, and the column of each BOS, int32 `[B]`.
    """
    starts = prompts.shape[1] - prompt_lengths
    columns = jnp.arange(prompts.shape[1] + 1, dtype=jnp.int32)[None]
    places = columns - starts[:, None] - 1  # -1: BOS
    tokens = jnp.take_along_axis(prompts, jnp.maximum(places, 0), axis=1)
    tokens = jnp.where(places >= 0, tokens, jnp.where(places == -1, bos_id, pad_id))
    return tokens.astype(jnp.int32), starts


def prefill(step_fn: Callable, cache: Any, columns: jax.Array, width: int) -> tuple[jax.Array, Any]:
    """Read all columns but the last in one pass.

    The pass has B rows, not B * W: the hypotheses of a sentence share its prompt, so their rows of
    the cache are copies.

    Args:
      step_fn: of the engine.
      cache: empty, rows B * W.
      columns: from `align_right`.
      width: W.

    Returns:
      Logits `[B, P, V]`, and the cache with rows B * W.
    """

    def first(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(-1, width, *leaf.shape[1:])[:, 0] if leaf.ndim else leaf

    def spread(leaf: jax.Array) -> jax.Array:
        return jnp.repeat(leaf, width, axis=0) if jnp.ndim(leaf) else leaf

    if width == 1:
        return step_fn(columns[:, :-1], cache)
    logits, cache = step_fn(columns[:, :-1], jax.tree.map(first, cache))
    return logits, jax.tree.map(spread, cache)


def prompt_log_probs(logits: jax.Array, columns: jax.Array, starts: jax.Array) -> jax.Array:
    """Sums of log p over the tokens of each prompt, added up in their order as a search does.

    Args:
      logits: `[B, P, V]`, of `columns[:, :-1]`.
      columns: int32 `[B, P + 1]`.
      starts: int32 `[B]`.

    Returns:
      float32 `[B]`.
    """
    logits = logits.astype(jnp.float32)
    # As `jax.nn.log_softmax`, of the tokens alone: its result would be as large as the logits.
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    chosen = jnp.take_along_axis(shifted, columns[:, 1:, None], axis=-1)[:, :, 0]
    gains = chosen - jnp.log(jnp.sum(jnp.exp(shifted), axis=-1))  # [B, P]
    inside = jnp.arange(gains.shape[1], dtype=jnp.int32)[None] >= starts[:, None]
    gains = jnp.where(inside, gains, 0.0)

    def add(total: jax.Array, gain: jax.Array) -> tuple[jax.Array, None]:
        return total + gain, None

    return jax.lax.scan(add, jnp.zeros(gains.shape[:1], jnp.float32), gains.T)[0]
