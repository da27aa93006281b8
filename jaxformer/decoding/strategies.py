"""Three ways to choose tokens: the most probable, a random one, the best of W beams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.config_sections import LENGTH_PENALTIES
from jaxformer.decoding.engine import DecodingResult, SearchSpace
from jaxformer.decoding.length_penalty import length_penalty
from jaxformer.decoding.prompts import Prompt
from jaxformer.decoding.sequences import (
    NEVER,
    Sequences,
    begin,
    collect,
    empty,
    ended_lengths,
    extend,
    last_is_eos,
    write_token,
)
from jaxformer.errors import InputError, check_choice, check_range


@dataclass(frozen=True)
class Greedy:
    """The most probable token at each step, the lowest id among equals; score = log-probability."""

    width: ClassVar[int] = 1
    needs_key: ClassVar[bool] = False

    def init(self, space: SearchSpace, prompt: Prompt | None = None) -> Sequences:
        return begin(space, 1, prompt)

    def advance(self, space, step, log_probs, state):
        # top_k(1), not argmax: the same order as beam search, and cheaper on CPU.
        _, best = jax.lax.top_k(log_probs[:, 0], 1)  # [B, 1]
        return extend(space, step, log_probs, best, state)

    def finished(self, space, state):
        return last_is_eos(space, state)[:, 0]

    def result(self, space: SearchSpace, state: Sequences) -> DecodingResult:
        return collect(space, state)


@dataclass(frozen=True)
class Sample:
    """Draw each token from `softmax(logits / temperature)`, optionally from its head only.

    `top_k` keeps the k most probable tokens (0: all); `top_p` then keeps the fewest of them whose
    share reaches p (Holtzman et al. 2020). Among equals the lowest ids are kept. Reported
    log-probabilities are the model's own, without temperature, `top_k` or `top_p`. `top_p` below 1
    without `top_k` sorts the vocabulary at each step, which costs more than a small model does on
    CPU.

    The hypotheses of a sentence are independent draws in the order of their numbers, not ranked,
    so the same one may come twice. The first n of them are those of `num_samples=n`.

    Raises:
      InputError: a field is out of range.
    """

    needs_key: ClassVar[bool] = True
    temperature: float = 1.0  # below 1: sharper, above 1: flatter
    top_k: int = 0  # tokens; 0: all
    top_p: float = 1.0  # share of the probability; 1: all
    num_samples: int = 1  # W, draws for each sentence

    def __post_init__(self):
        if self.temperature == 0:
            raise InputError(
                f"temperature={self.temperature} draws nothing; for the most probable token at "
                "each step search greedily, or give a temperature above 0"
            )
        check_range("temperature", self.temperature, 1e-6)
        check_range("top_k", self.top_k, 0)
        check_range("top_p", self.top_p, 1e-6, 1.0)
        check_range("num_samples", self.num_samples, 1)

    @property
    def width(self) -> int:
        return self.num_samples

    def init(self, space: SearchSpace, prompt: Prompt | None = None) -> Sequences:
        return begin(space, self.num_samples, prompt)

    def advance(self, space, step, log_probs, state):
        chosen = self._draw(step.keys, log_probs)
        new, tokens, _ = extend(space, step, log_probs, chosen, state)
        if self.num_samples > 1:  # the engine waits until the last sample of a sentence ends
            ended = last_is_eos(space, state)  # [B, W]
            new = Sequences(
                tokens=jnp.where(ended[:, :, None], state.tokens, new.tokens),
                **{
                    name: jnp.where(ended, getattr(state, name), getattr(new, name))
                    for name in ("lengths", "log_probs", "scores", "truncated")
                },
            )
            tokens = jnp.where(ended, space.pad_id, tokens)
        return new, tokens, None

    def finished(self, space, state):
        return jnp.all(last_is_eos(space, state), axis=1)

    def result(self, space: SearchSpace, state: Sequences) -> DecodingResult:
        return collect(space, state)

    def _draw(self, keys: jax.Array, log_probs: jax.Array) -> jax.Array:
        """A token for each sample, int32 `[B, W]`."""
        batch_size, width, vocab_size = log_probs.shape
        numbers = jnp.arange(width, dtype=jnp.int32)
        keys = jax.vmap(lambda key: jax.vmap(lambda n: jax.random.fold_in(key, n))(numbers))(keys)
        keys = keys.reshape(-1)  # [B*W]
        draw = jax.vmap(jax.random.categorical)
        log_p = log_probs.reshape(-1, vocab_size)  # [B*W, V]
        # Shifted to a maximum of 0 first, so that a tiny temperature cannot overflow.
        scaled = (log_p - jnp.max(log_p, axis=1, keepdims=True)) / self.temperature
        if self.top_k == 0 and self.top_p == 1.0:
            chosen = draw(keys, scaled)
        else:
            values, ids = jax.lax.top_k(scaled, min(self.top_k or vocab_size, vocab_size))
            if self.top_p < 1.0:
                share = jnp.cumsum(jax.nn.softmax(values, axis=1), axis=1)
                before = jnp.pad(share[:, :-1], ((0, 0), (1, 0)))  # the first is always kept
                values = jnp.where(before < self.top_p, values, NEVER)
            place = draw(keys, values)[:, None]
            chosen = jnp.take_along_axis(ids, place, axis=1)[:, 0]
        return chosen.astype(jnp.int32).reshape(batch_size, width)


class Beams(NamedTuple):
    """The state of `BeamSearch`; a beam whose log-probability is -inf is dead."""

    alive_tokens: jax.Array  # [B, W, T] int32
    alive_log_probs: jax.Array  # [B, W] float32
    finished: Sequences  # best score first


class Candidates(NamedTuple):
    """Alive beams, each continued by one token, most probable first; -inf: an empty slot."""

    log_probs: jax.Array  # [B, C] float32
    tokens: jax.Array  # [B, C] int32
    parents: jax.Array  # [B, C] int32, the beam continued
    cut: jax.Array  # [B, C] bool, ended by the limit and not by the model


@dataclass(frozen=True)
class BeamSearch:
    """Keep the W most probable beginnings; rank the ended ones by length-normalised score.

    At each step of a sentence:

    1. The candidates are the 2W most probable of the W * V continuations of the alive beams, by
       summed log-probability. At first one beam, BOS alone, is alive.
    2. A candidate that ends in EOS is finished if it ranks among the first W candidates, and is
       dropped otherwise. Its score is `log p / length_penalty(L)`, L with EOS.
    3. The W most probable candidates without EOS stay alive.
    4. At the sentence's length limit every alive beam is continued by EOS, at the price of its
       log-probability, and competes. It is marked truncated if EOS was not its best continuation.

    At most W finished hypotheses are kept, those of highest score. A sentence is done when it has
    W of them, at its limit, or when no beam is alive. Ties go to the earlier beam, then to the
    more probable, then to the lower id. With W = 1 this is `Greedy`, whatever the penalty; with
    W at least the number of sequences it is exhaustive. `length_penalty` and `alpha`: Wu et al.
    2016, equation 14; the paper's section 6.1 uses width 4 and alpha 0.6.

    Raises:
      InputError: a field is out of range or names no penalty.
    """

    needs_key: ClassVar[bool] = False
    width: int = 4  # W
    length_penalty: str = "gnmt"
    alpha: float = 0.6

    def __post_init__(self):
        check_range("width", self.width, 1)
        check_choice("length_penalty", self.length_penalty, LENGTH_PENALTIES)
        check_range("alpha", self.alpha, 0.0)

    def init(self, space: SearchSpace, prompt: Prompt | None = None) -> Beams:
        finished = empty(space, self.width, NEVER)
        alone = begin(space, self.width, prompt)
        alive = finished.log_probs.at[:, 0].set(alone.log_probs[:, 0])
        return Beams(alone.tokens, alive, finished)

    def advance(self, space, step, log_probs, state):
        ranked = self.candidates(space, step, log_probs, state.alive_log_probs)
        ends = ranked.tokens == space.eos_id  # [B, C]
        finished = self._finish(space, step, ranked, ends, state)
        growing = jnp.where(ends, NEVER, ranked.log_probs)
        alive_log_probs, places = jax.lax.top_k(growing, self.width)  # [B, W]
        parents = jnp.take_along_axis(ranked.parents, places, axis=1)
        tokens = jnp.take_along_axis(ranked.tokens, places, axis=1)
        alive_tokens = jnp.take_along_axis(state.alive_tokens, parents[:, :, None], axis=1)
        alive_tokens = write_token(alive_tokens, tokens, step.index)  # [B, W, T]
        return Beams(alive_tokens, alive_log_probs, finished), tokens, parents

    def finished(self, space, state):
        full = jnp.all(state.finished.log_probs != NEVER, axis=1)
        return full | jnp.all(state.alive_log_probs == NEVER, axis=1)

    def result(self, space: SearchSpace, state: Beams) -> DecodingResult:
        return collect(space, state.finished)

    def candidates(self, space, step, log_probs, alive) -> Candidates:
        """The candidates of a step, ranked in two stages: within each beam, then across beams.

        The first W candidates hold at most W of one beam, and the W best without EOS at most W of
        one beam besides its EOS: so W + 1 of each beam are enough to give both.
        """
        batch_size, width, vocab_size = log_probs.shape
        each = min(width + 1, vocab_size)
        # Two axes: the only layout for which XLA's CPU backend selects instead of sorting.
        gains, tokens = jax.lax.top_k(log_probs.reshape(-1, vocab_size), each)  # [B*W, each]
        gains = gains.reshape(batch_size, width, each)
        tokens = tokens.reshape(batch_size, width, each)
        at_limit = step.at_limit[:, None, None]
        only_eos = jnp.full_like(gains, NEVER).at[:, :, 0].set(log_probs[:, :, space.eos_id])
        cut = at_limit & (tokens[:, :, :1] != space.eos_id)  # [B, W, 1]
        gains = jnp.where(at_limit, only_eos, gains)
        tokens = jnp.where(at_limit, space.eos_id, tokens)
        # A dead beam stays dead even where its logits are NaN.
        alive = alive[:, :, None]
        totals = jnp.where(alive == NEVER, NEVER, alive + gains)  # [B, W, each]
        count = min(2 * width, width * each)
        best, places = jax.lax.top_k(totals.reshape(batch_size, -1), count)  # [B, C]
        parents = places // each
        return Candidates(
            log_probs=best,
            tokens=jnp.take_along_axis(tokens.reshape(batch_size, -1), places, axis=1),
            parents=parents,
            cut=jnp.take_along_axis(cut[:, :, 0], parents, axis=1),
        )

    def score(self, log_probs: jax.Array, lengths: jax.Array) -> jax.Array:
        """What finished hypotheses of `lengths` tokens are ranked by; both of one shape."""
        return log_probs / length_penalty(self.length_penalty, lengths, self.alpha)

    def _finish(self, space, step, ranked, ends, state: Beams) -> Sequences:
        """Merge the ended ones of the first W candidates into the W best finished."""
        width = self.width
        parents = ranked.parents[:, :width]
        tokens = jnp.take_along_axis(state.alive_tokens, parents[:, :, None], axis=1)
        log_probs = jnp.where(ends, ranked.log_probs, NEVER)[:, :width]
        lengths = ended_lengths(step, parents)
        new = Sequences(
            tokens=write_token(tokens, jnp.full_like(parents, space.eos_id), step.index),
            lengths=lengths,
            log_probs=log_probs,
            scores=self.score(log_probs, lengths),
            truncated=ranked.cut[:, :width],
        )
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), state.finished, new)
        _, places = jax.lax.top_k(both.scores, width)  # [B, W]

        def pick(leaf: jax.Array) -> jax.Array:
            index = places[:, :, None] if leaf.ndim == 3 else places
            return jnp.take_along_axis(leaf, index, axis=1)

        return jax.tree.map(pick, both)
