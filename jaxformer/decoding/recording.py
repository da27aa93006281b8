"""A search that remembers: any strategy, with every candidate it weighed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.decoding.engine import DecodingResult, SearchSpace, Step
from jaxformer.decoding.prompts import Prompt
from jaxformer.decoding.sequences import NEVER
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
from jaxformer.errors import InputError


class SearchRecord(NamedTuple):
    """The candidates of each step: C = 2W continuations of the rows that were alive.

    Beam search lists them most probable first, of one row at most its W + 1 best; `Greedy` and
    `Sample` the token they took and then the most probable other one. A candidate lives on (`rows`
    >= 0), has ended (`scores` > -inf) or was dropped. Slots of log-probability -inf are empty, so
    are steps from `num_steps` on.
    """

    tokens: jax.Array  # [B, T, C] int32
    parents: jax.Array  # [B, T, C] int32, the row that is continued; at first row 0, BOS alone
    rows: jax.Array  # [B, T, C] int32, the row that the candidate becomes; -1: none
    log_probs: jax.Array  # [B, T, C] float32, sum of log p from the first token on
    scores: jax.Array  # [B, T, C] float32, of the ended ones, what they are ranked by
    num_steps: jax.Array  # [B] int32


class Recorded(NamedTuple):
    """What `decode` returns for `Recording(strategy)`: for `strategy` alone, and the record."""

    result: DecodingResult
    record: SearchRecord


class _State(NamedTuple):
    search: Any  # of the strategy
    record: SearchRecord


@dataclass(frozen=True)
class Recording:
    """`strategy` itself, called by the same loop; beside its state the candidates are kept.

    Example:
      >>> result, record = decode(step_fn, cache, Recording(BeamSearch(4)), ...)
    """

    strategy: BeamSearch | Greedy | Sample

    def __post_init__(self):
        if isinstance(self.strategy, Sample) and self.strategy.num_samples > 1:
            raise InputError(
                f"num_samples={self.strategy.num_samples}: a record holds one sample of each "
                "sentence; use num_samples=1"
            )

    @property
    def width(self) -> int:
        return self.strategy.width

    @property
    def needs_key(self) -> bool:
        return self.strategy.needs_key

    def init(self, space: SearchSpace, prompt: Prompt | None = None) -> _State:
        if prompt is not None:
            raise InputError("a search with prompts cannot be recorded; leave out `prompts`")
        shape = (space.batch_size, space.max_length, 2 * self.width)
        nothing, never = jnp.full(shape, -1, jnp.int32), jnp.full(shape, NEVER, jnp.float32)
        num_steps = jnp.zeros((space.batch_size,), jnp.int32)
        record = SearchRecord(nothing, nothing, nothing, never, never, num_steps)
        return _State(self.strategy.init(space, None), record)

    def advance(self, space: SearchSpace, step: Step, log_probs: jax.Array, state: _State):
        search, tokens, parents = self.strategy.advance(space, step, log_probs, state.search)
        continued = jnp.zeros_like(tokens) if parents is None else parents
        weighed = self._weigh(space, step, log_probs, state.search, tokens, continued)

        def write(array: jax.Array, values: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(array, values, step.index, axis=1)

        record = jax.tree.map(write, state.record._replace(num_steps=None), weighed)
        record = record._replace(num_steps=state.record.num_steps + 1)
        return _State(search, record), tokens, parents

    def finished(self, space: SearchSpace, state: _State) -> jax.Array:
        return self.strategy.finished(space, state.search)

    def result(self, space: SearchSpace, state: _State) -> Recorded:
        return Recorded(self.strategy.result(space, state.search), state.record)

    def _weigh(self, space, step, log_probs, before, taken, continued) -> SearchRecord:
        """The candidates `[B, C]` of a step that went on with `taken` after rows `continued`."""
        if isinstance(self.strategy, BeamSearch):
            ranked = self.strategy.candidates(space, step, log_probs, before.alive_log_probs)
            totals, tokens, parents = ranked.log_probs, ranked.tokens, ranked.parents
            scores = self.strategy.score(totals, jnp.full_like(tokens, step.index + 1))
        else:
            _, best = jax.lax.top_k(log_probs[:, 0], 2)  # [B, 2]
            other = jnp.where(best[:, :1] == taken, best[:, 1:], best[:, :1])
            tokens = jnp.concatenate([taken, other], axis=1)
            parents = jnp.zeros_like(tokens)
            totals = before.log_probs + jnp.take_along_axis(log_probs[:, 0], tokens, axis=1)
            scores = totals
        possible, ends = totals != NEVER, tokens == space.eos_id  # [B, C]
        ranks = jnp.arange(tokens.shape[1])[None]
        ended = possible & ends & (ranks < self.width)
        becomes = (tokens[:, :, None] == taken[:, None]) & (
            parents[:, :, None] == continued[:, None]
        )  # [B, C, W]
        alive = possible & ~ends & jnp.any(becomes, axis=2)
        return SearchRecord(
            tokens=tokens,
            parents=parents,
            rows=jnp.where(alive, jnp.argmax(becomes, axis=2).astype(jnp.int32), -1),
            log_probs=totals,
            scores=jnp.where(ended, scores, NEVER),
            num_steps=None,
        )
