"""The one decoding loop: it knows a model as a callable and a strategy as four methods.

The engine owns what all searches share: the length limits, who is done, the freezing of finished
sentences, random keys and the reordering of the cache. A strategy
(`jaxformer.decoding.strategies`) owns which tokens are chosen. The cache owns the position: the
engine reads `cache.index` and counts nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxformer.decoding.checks import (
    check_logits,
    check_prompt_values,
    check_same_cache,
    checked_cache,
    checked_prompts,
)
from jaxformer.decoding.prompts import Prompt, align_right, prefill, prompt_log_probs
from jaxformer.errors import InputError, check_range

StepFn = Callable[[jax.Array, Any], tuple[jax.Array, Any]]


class IndexedCache(NamedTuple):
    """The cache of a model that has no type of its own for it.

    Attributes:
      rows: pytree of arrays with leading axis B * W.
      index: int32 scalar, tokens of each row that were read.
    """

    rows: Any = ()
    index: jax.Array | int = 0


class DecodingResult(NamedTuple):
    """The hypotheses of each sentence, best first; all end in EOS.

    A sentence with fewer than W hypotheses has empty slots after them: length 0, tokens all
    `pad_id`, log-probability and score -inf. Sequences of probability zero are not hypotheses.
    """

    tokens: jax.Array  # [B, W, max_length] int32, prompt and EOS included, pad_id after it
    lengths: jax.Array  # [B, W] int32, tokens with prompt and EOS
    log_probs: jax.Array  # [B, W] float32, sum of log p over these tokens
    scores: jax.Array  # [B, W] float32, what the strategy ranks by, descending
    truncated: jax.Array  # [B, W] bool, the limit put EOS where another token was chosen
    num_hypotheses: jax.Array  # [B] int32, filled slots


class SearchSpace(NamedTuple):
    """The static facts of a search."""

    batch_size: int  # B
    max_length: int  # T, room for tokens
    eos_id: int
    pad_id: int


class Step(NamedTuple):
    """What changes from step to step, besides the model's output."""

    # Position of the token to choose, from 0: int32 [], or [B] with prompts.
    index: jax.Array
    at_limit: jax.Array  # [B] bool, this token is the sentence's last and must be EOS
    keys: jax.Array | None  # [B] one fresh key a sentence, for strategies that draw


class Strategy(Protocol):
    """How tokens are chosen. Implementations are frozen dataclasses, so they hash (static in jit).

    The state is any pytree whose leaves have the batch as leading axis. The engine discards what
    `advance` does to sentences that are done, so a strategy need not look out for them.
    """

    @property
    def width(self) -> int:
        """W, hypotheses kept alive for each sentence."""

    @property
    def needs_key(self) -> bool:
        """Whether the strategy draws random numbers."""

    def init(self, space: SearchSpace, prompt: Prompt | None = None) -> Any:
        """The state before the first token that is chosen."""

    def advance(
        self, space: SearchSpace, step: Step, log_probs: jax.Array, state: Any
    ) -> tuple[Any, jax.Array, jax.Array | None]:
        """Choose tokens from `log_probs [B, W, V]` float32.

        Returns:
          The new state, the tokens to feed next [B, W] int32, and for each the row [B, W] int32
          (0..W-1) that it continues, or None where every row continues itself.
        """

    def finished(self, space: SearchSpace, state: Any) -> jax.Array:
        """[B] bool: no further token can change the result."""

    def result(self, space: SearchSpace, state: Any) -> DecodingResult:
        """The hypotheses, best first. `decode` returns this as it is, so it may hold more."""


class _Loop(NamedTuple):
    tokens: jax.Array  # [B, W] int32, fed next
    cache: Any
    state: Any
    done: jax.Array  # [B] bool


def decode(
    step_fn: StepFn,
    cache: Any,
    strategy: Strategy,
    *,
    batch_size: int,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_length: int,
    max_lengths: jax.Array | None = None,
    prompts: jax.Array | None = None,
    prompt_lengths: jax.Array | None = None,
    score_prompts: bool = True,
    key: jax.Array | None = None,
    row_ids: jax.Array | None = None,
) -> DecodingResult:
    """Generate the continuations of each sentence of a batch; call it inside `jax.jit`.

    One `lax.while_loop` of static shapes, ended as soon as all sentences are done. A sentence's
    result depends on its own rows alone: not on batch mates, padding rows or `max_length`.
    Log-probabilities are float32 whatever the dtype of the logits. A NaN among a sentence's
    logits is not hidden: it makes the log-probability and score of its best slot NaN.

    With prompts every hypothesis of a sentence begins with its prompt, as if the search had been
    allowed no other tokens there. The model reads the prompts in one pass over P columns,
    right-aligned (`jaxformer.decoding.prompts`): its cache must know that row b starts in column
    `P - prompt_lengths[b]`, and needs `max_length` columns after the last of these starts.

    Args:
      step_fn: `(tokens [R, T] int32, cache) -> (logits [R, T, V], cache)`, with `index` of the
        cache T higher. R is B * W and T is 1: row `b * W + w` is beam w of sentence b. Only for
        the pass over the prompts R is B and T is P. Values that exist once a sentence (encoder keys
        and values) belong into its closure.
      cache: pytree with an attribute `index`, int32 scalar, 0: the columns that the model has read.
        All its other arrays have leading axis B * W and are reordered with the beams.
      strategy: `Greedy`, `Sample`, `BeamSearch` or another `Strategy`.
      batch_size: B.
      bos_id, eos_id, pad_id: ids of the target vocabulary; pad is fed to finished rows.
      max_length: static bound on the tokens of a hypothesis, prompt and EOS included.
      max_lengths: int32 [B], each sentence's own bound, prompt and EOS included; at most
        `max_length`, which is also the default. At the bound only EOS is allowed, and its
        log-probability counts. 0 marks a padding row: done from the start, no hypotheses.
      prompts: int32 [B, P], without BOS and EOS; None: every hypothesis begins after BOS.
      prompt_lengths: int32 [B], tokens of `prompts` that count, from the left; 0: BOS alone. None:
        all P.
      score_prompts: log-probabilities and scores count the tokens of the prompt. False: only those
        generated; the model's projection to the vocabulary is then not computed for prompts. The
        length penalty counts the tokens of both.
      key: random key, for strategies that draw.
      row_ids: int32 [B], names the sentences for the random streams, such as by line numbers, so
        that a draw does not depend on the place in a batch; default 0..B-1.

    Raises:
      InputError: shapes, ids, prompts or the key do not fit together. Values of prompts are
        checked if they are concrete; under `jax.jit` call `prompts.check_prompts` before.
    """
    width = strategy.width
    check_range("batch_size", batch_size, 1)
    check_range("max_length", max_length, 1)
    ids = {"bos_id": bos_id, "eos_id": eos_id, "pad_id": pad_id}
    cache = checked_cache(cache, batch_size, width)
    row_keys = _row_keys(strategy, key, row_ids, batch_size)
    limits = _limits(max_lengths, batch_size, max_length)
    space = SearchSpace(batch_size, max_length, eos_id, pad_id)
    prompt, starts, room = None, None, max_length
    first = jnp.full((batch_size, width), bos_id, jnp.int32)
    if prompts is not None and jnp.shape(prompts)[-1:] != (0,):
        prompts, prompt_lengths = checked_prompts(prompts, prompt_lengths, batch_size)
        columns, starts = align_right(prompts, prompt_lengths, bos_id=bos_id, pad_id=pad_id)
        logits, cache = prefill(step_fn, cache, columns, width)
        check_logits(logits, batch_size, prompts.shape[1], **ids)
        check_prompt_values(prompts, prompt_lengths, limits, eos_id, logits.shape[2])
        log_probs = jnp.zeros((batch_size,), jnp.float32)
        if score_prompts:
            log_probs = prompt_log_probs(logits, columns, starts)
        prompt = Prompt(_fit(prompts, prompt_lengths, space), prompt_lengths, log_probs)
        first = jnp.repeat(columns[:, -1:], width, axis=1)  # the loop itself reads the last column
        room = max_length + prompts.shape[1]

    def unfinished(loop: _Loop) -> jax.Array:
        return (loop.cache.index < room) & ~jnp.all(loop.done)

    def body(loop: _Loop) -> _Loop:
        logits, cache = step_fn(loop.tokens.reshape(-1, 1), loop.cache)
        check_logits(logits, batch_size * width, 1, **ids)
        check_same_cache(loop.cache, cache)
        log_probs = jax.nn.log_softmax(logits[:, 0].astype(jnp.float32), axis=-1)
        log_probs = log_probs.reshape(batch_size, width, -1)  # [B, W, V]
        position = loop.cache.index if starts is None else loop.cache.index - starts
        step = Step(position, position + 1 >= limits, _step_keys(row_keys, position))
        state, tokens, parents = strategy.advance(space, step, log_probs, loop.state)
        state = _select(loop.done, loop.state, state)
        if parents is not None:
            cache = _reorder(cache, parents)
        done = loop.done | step.at_limit | strategy.finished(space, state)
        tokens = jnp.where(done[:, None], pad_id, tokens)
        return _Loop(tokens, cache, state, done)

    start = _Loop(first, cache, strategy.init(space, prompt), limits <= 0)
    return strategy.result(space, jax.lax.while_loop(unfinished, body, start).state)


def _fit(prompts: jax.Array, prompt_lengths: jax.Array, space: SearchSpace) -> jax.Array:
    """Prompts `[B, P]` as beginnings of hypotheses `[B, T]`, with padding after them."""
    size = min(prompts.shape[1], space.max_length)
    inside = jnp.arange(size, dtype=jnp.int32)[None] < prompt_lengths[:, None]
    tokens = jnp.where(inside, prompts[:, :size], space.pad_id)
    return jnp.pad(tokens, ((0, 0), (0, space.max_length - size)), constant_values=space.pad_id)


def _select(keep_old: jax.Array, old: Any, new: Any) -> Any:
    """`old` where `keep_old [B]`, else `new`, leaf by leaf."""

    def leaf(old_leaf: jax.Array, new_leaf: jax.Array) -> jax.Array:
        mask = jnp.expand_dims(keep_old, tuple(range(1, old_leaf.ndim)))
        return jnp.where(mask, old_leaf, new_leaf)

    return jax.tree.map(leaf, old, new)


def _reorder(cache: Any, parents: jax.Array) -> Any:
    """Give row w of each sentence the cache of row `parents[b, w]`."""
    # Gathered within each sentence, so that no row leaves the device that holds its sentence.
    take = jax.vmap(lambda rows, chosen: rows[chosen])

    def leaf(array: jax.Array) -> jax.Array:
        if array.ndim == 0:  # the index, which all rows share
            return array
        grouped = array.reshape(*parents.shape, *array.shape[1:])  # [B, W, ...]
        return take(grouped, parents).reshape(array.shape)  # [B*W, ...]

    return jax.tree.map(leaf, cache)


def _row_keys(
    strategy: Strategy, key: jax.Array | None, row_ids: jax.Array | None, batch_size: int
) -> jax.Array | None:
    if not strategy.needs_key:
        return None
    if key is None:
        raise InputError(f"key=None, but {strategy} draws tokens; pass jax.random.key(seed)")
    if row_ids is None:
        row_ids = jnp.arange(batch_size, dtype=jnp.int32)
    if jnp.shape(row_ids) != (batch_size,):
        raise InputError(f"row_ids has shape {jnp.shape(row_ids)}; expected ({batch_size},)")
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(jnp.asarray(row_ids))


def _step_keys(row_keys: jax.Array | None, position: jax.Array) -> jax.Array | None:
    """A key for each sentence that depends on the position of the token, not on its column."""
    if row_keys is None:
        return None
    if position.ndim:
        return jax.vmap(jax.random.fold_in)(row_keys, position)
    return jax.vmap(lambda row_key: jax.random.fold_in(row_key, position))(row_keys)


def _limits(max_lengths: jax.Array | None, batch_size: int, max_length: int) -> jax.Array:
    if max_lengths is None:
        return jnp.full((batch_size,), max_length, jnp.int32)
    if jnp.shape(max_lengths) != (batch_size,):
        raise InputError(
            f"max_lengths has shape {jnp.shape(max_lengths)}; expected one limit a sentence, "
            f"({batch_size},)"
        )
    return jnp.minimum(jnp.asarray(max_lengths, jnp.int32), max_length)
