"""The one decoding loop: it knows a model as a callable and a strategy as four methods.

The engine owns what all searches share: the step counter, the length limits, who is done, the
freezing of finished sentences, random keys and the reordering of the cache. A strategy
(`jaxformer.decoding.strategies`) owns which tokens are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError, check_range

StepFn = Callable[[jax.Array, jax.Array, Any], tuple[jax.Array, Any]]


class DecodingResult(NamedTuple):
    """The hypotheses of each sentence, best first; all end in EOS.

    A sentence with fewer than W hypotheses has empty slots after them: length 0, tokens all
    `pad_id`, log-probability and score -inf. Sequences of probability zero are not hypotheses.
    """

    tokens: jax.Array  # [B, W, max_length] int32, EOS included, pad_id after it
    lengths: jax.Array  # [B, W] int32, generated tokens with EOS
    log_probs: jax.Array  # [B, W] float32, sum of log p over the generated tokens
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

    index: jax.Array  # [] int32, position of the token to choose, from 0
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

    def init(self, space: SearchSpace) -> Any:
        """The state before the first token."""

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
    index: jax.Array  # [] int32
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
    key: jax.Array | None = None,
    row_ids: jax.Array | None = None,
) -> DecodingResult:
    """Generate a translation of each sentence of a batch; call it inside `jax.jit`.

    One `lax.while_loop` of static shapes, ended as soon as all sentences are done. A sentence's
    result depends on its own rows alone: not on batch mates, padding rows or `max_length`.
    Log-probabilities are float32 whatever the dtype of the logits. A NaN among a sentence's
    logits is not hidden: it makes the log-probability and score of its best slot NaN.

    Args:
      step_fn: `(tokens [B*W] int32, index [] int32, cache) -> (logits [B*W, V], cache)`; row
        `b * W + w` is beam w of sentence b, `index` counts from 0, where `tokens` is BOS. Values
        that exist once a sentence (encoder keys and values) belong into its closure.
      cache: pytree of arrays with leading axis B*W. All of it is reordered with the beams.
      strategy: `Greedy`, `Sample`, `BeamSearch` or another `Strategy`.
      batch_size: B.
      bos_id, eos_id, pad_id: ids of the target vocabulary; pad is fed to finished rows.
      max_length: static bound on generated tokens, EOS included.
      max_lengths: int32 [B], each sentence's own bound, EOS included; cut to `max_length`, which
        is also the default. At the bound only EOS is allowed, and its log-probability counts.
        0 marks a padding row: done from the start, no hypotheses.
      key: random key, for strategies that draw.
      row_ids: int32 [B], names the sentences for the random streams (line numbers, say), so that
        a draw does not depend on the place in a batch; default 0..B-1.

    Raises:
      InputError: shapes, ids or the key do not fit together.
    """
    width = strategy.width
    check_range("batch_size", batch_size, 1)
    check_range("max_length", max_length, 1)
    _check_cache(cache, batch_size, width)
    row_keys = _row_keys(strategy, key, row_ids, batch_size)
    limits = _limits(max_lengths, batch_size, max_length)
    space = SearchSpace(batch_size, max_length, eos_id, pad_id)

    def unfinished(loop: _Loop) -> jax.Array:
        return (loop.index < max_length) & ~jnp.all(loop.done)

    def body(loop: _Loop) -> _Loop:
        logits, cache = step_fn(loop.tokens.reshape(-1), loop.index, loop.cache)
        _check_logits(logits, batch_size * width, bos_id=bos_id, eos_id=eos_id, pad_id=pad_id)
        _check_same_cache(loop.cache, cache)
        log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        log_probs = log_probs.reshape(batch_size, width, -1)  # [B, W, V]
        keys = None
        if row_keys is not None:
            keys = jax.vmap(lambda row_key: jax.random.fold_in(row_key, loop.index))(row_keys)
        step = Step(loop.index, loop.index + 1 >= limits, keys)
        state, tokens, parents = strategy.advance(space, step, log_probs, loop.state)
        state = _select(loop.done, loop.state, state)
        if parents is not None:
            cache = _reorder(cache, parents)
        done = loop.done | step.at_limit | strategy.finished(space, state)
        tokens = jnp.where(done[:, None], pad_id, tokens)
        return _Loop(loop.index + 1, tokens, cache, state, done)

    first = jnp.full((batch_size, width), bos_id, jnp.int32)
    start = _Loop(jnp.int32(0), first, cache, strategy.init(space), limits <= 0)
    return strategy.result(space, jax.lax.while_loop(unfinished, body, start).state)


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


def _limits(max_lengths: jax.Array | None, batch_size: int, max_length: int) -> jax.Array:
    if max_lengths is None:
        return jnp.full((batch_size,), max_length, jnp.int32)
    if jnp.shape(max_lengths) != (batch_size,):
        raise InputError(
            f"max_lengths has shape {jnp.shape(max_lengths)}; expected one limit a sentence, "
            f"({batch_size},)"
        )
    return jnp.minimum(jnp.asarray(max_lengths, jnp.int32), max_length)


def _check_cache(cache: Any, batch_size: int, width: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if jnp.ndim(leaf) < 1 or jnp.shape(leaf)[0] != batch_size * width:
            raise InputError(
                f"cache{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}; its leading axis "
                f"must be batch_size * width = {batch_size} * {width} (values that exist once a "
                "sentence belong into the closure of step_fn)"
            )


def _check_same_cache(old: Any, new: Any) -> None:
    """The loop carries the cache, so `step_fn` must return what it was given."""
    given, given_tree = jax.tree_util.tree_flatten_with_path(old)
    returned, returned_tree = jax.tree_util.tree_flatten(new)
    if given_tree != returned_tree:
        raise InputError(f"step_fn returned the cache {returned_tree}; it was given {given_tree}")
    for (path, before), after in zip(given, returned, strict=True):
        if (before.shape, before.dtype) != (jnp.shape(after), jnp.result_type(after)):
            raise InputError(
                f"step_fn returned cache{jax.tree_util.keystr(path)} as "
                f"{jnp.result_type(after)}{list(jnp.shape(after))}; it was given "
                f"{before.dtype}{list(before.shape)} and must keep shape and dtype"
            )


def _check_logits(logits: jax.Array, rows: int, **ids: int) -> None:
    if logits.ndim != 2 or logits.shape[0] != rows:
        raise InputError(f"step_fn returned logits of shape {logits.shape}; expected ({rows}, V)")
    for name, token in ids.items():
        check_range(name, token, 0, logits.shape[1] - 1)
