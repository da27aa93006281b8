"""Hypotheses that begin with a prompt: as if the search had been allowed no other tokens there."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding.engine import IndexedCache, decode
from jaxformer.decoding.prompts import check_prompts
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
from jaxformer.errors import InputError

PAD, EOS, BOS = range(3)
IDS = {"pad_id": PAD, "eos_id": EOS, "bos_id": BOS}
BATCH, ROOM, VOCAB, FEATURES = 6, 8, 7, 12
STRATEGIES = [
    Greedy(),
    Sample(),
    Sample(top_k=4, top_p=0.9, num_samples=3),
    BeamSearch(4),
    BeamSearch(3, "power", 1.0),
]
_random = np.random.default_rng(0)
SENTENCES = _random.normal(size=(BATCH, FEATURES)).astype(np.float32)
TOKENS = _random.normal(size=(VOCAB, FEATURES)).astype(np.float32)
TURNS = _random.normal(size=(ROOM, FEATURES)).astype(np.float32)
OUTPUT = (_random.normal(size=(FEATURES, VOCAB)) * 0.5).astype(np.float32)
LIMITS = np.array([8, 5, 7, 8, 6, 8], np.int32)
PROMPTS = _random.integers(2, VOCAB, (BATCH, 5)).astype(np.int32)
LENGTHS = np.array([0, 2, 5, 1, 4, 0], np.int32)


class Memory(NamedTuple):
    """A running sum of what was read, and where each row starts."""

    total: jax.Array  # [R, F]
    starts: jax.Array  # [R]
    index: jax.Array


def make_step(sentences):
    """A model whose logits depend on the sentence, and on all tokens and their positions.

    Token by token it does the same operations in the same order however many are read at once, so
    that results can be compared bit for bit.
    """

    def step_fn(tokens, cache):
        rows = jnp.repeat(jnp.asarray(sentences), tokens.shape[0] // len(sentences), axis=0)
        logits, total = [], cache.total
        for t in range(tokens.shape[1]):
            position = cache.index + t - cache.starts
            turned = jnp.asarray(TOKENS)[tokens[:, t]] * jnp.asarray(TURNS)[position % ROOM]
            total = jnp.where((position >= 0)[:, None], jnp.tanh(total + turned), total)
            hidden = (rows + total)[:, :, None]
            logits.append(jnp.sum(hidden * OUTPUT[None], axis=1))
        cache = Memory(total, cache.starts, cache.index + tokens.shape[1])
        return jnp.stack(logits, axis=1), cache

    return step_fn


@partial(jax.jit, static_argnames=("strategy", "options"))
def search(sentences, limits, row_ids, prompts=None, lengths=None, *, strategy, options=()):
    batch_size = len(sentences)
    starts = jnp.zeros(batch_size, jnp.int32)
    if prompts is not None:
        starts = prompts.shape[1] - lengths
    memory = Memory(
        jnp.zeros((batch_size * strategy.width, FEATURES)),
        jnp.repeat(starts, strategy.width),
        jnp.int32(0),
    )
    return decode(
        make_step(sentences), memory, strategy, batch_size=batch_size, max_length=ROOM,
        max_lengths=limits, prompts=prompts, prompt_lengths=lengths, key=jax.random.key(3),
        row_ids=row_ids, **IDS, **dict(options),
    )  # fmt: skip


def run(strategy, prompts=None, lengths=None, rows=slice(None), options=()):
    arguments = (x if x is None else x[rows] for x in (prompts, lengths))
    row_ids = np.arange(BATCH, dtype=np.int32)
    return jax.device_get(
        search(
            SENTENCES[rows],
            LIMITS[rows],
            row_ids[rows],
            *arguments,
            strategy=strategy,
            options=options,
        )  # fmt: skip
    )


@dataclass(frozen=True)
class Forced:
    """`strategy`, allowed only the tokens of the prompts while these last, one step at a time."""

    strategy: Any

    @property
    def width(self):
        return self.strategy.width

    @property
    def needs_key(self):
        return self.strategy.needs_key

    def init(self, space, prompt):
        assert prompt is None
        return self.strategy.init(space)

    def advance(self, space, step, log_probs, state):
        prompts = jnp.pad(jnp.asarray(PROMPTS), ((0, 0), (0, ROOM)))
        wanted = jnp.take(prompts, step.index, axis=1)[:, None, None]
        forced = (step.index < jnp.asarray(LENGTHS))[:, None, None]
        others = jnp.arange(VOCAB)[None, None] != wanted
        return self.strategy.advance(
            space, step, jnp.where(forced & others, -jnp.inf, log_probs), state
        )

    def finished(self, space, state):
        return self.strategy.finished(space, state)

    def result(self, space, state):
        return self.strategy.result(space, state)


def assert_same(actual, expected):
    for name in actual._fields:
        one, other = np.asarray(getattr(actual, name)), np.asarray(getattr(expected, name))
        if one.dtype == np.float32:
            np.testing.assert_allclose(one, other, rtol=2e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_prompt_is_the_only_way_the_search_may_begin(strategy):
    found = run(strategy, PROMPTS, LENGTHS)
    assert_same(found, run(Forced(strategy)))
    for row, length in enumerate(LENGTHS):
        begun = found.tokens[row, : found.num_hypotheses[row], :length]
        np.testing.assert_array_equal(begun, np.broadcast_to(PROMPTS[row, :length], begun.shape))
    assert (found.lengths.max(axis=1) <= LIMITS).all() and found.truncated.any()
    free = run(strategy)
    assert (found.tokens[[1, 2, 4], 0] != free.tokens[[1, 2, 4], 0]).any(axis=1).all()


@pytest.mark.parametrize("strategy", STRATEGIES[:3], ids=str)
def test_a_prompt_that_was_chosen_anyway_changes_nothing(strategy):
    free = run(strategy)
    prompts = np.where(free.tokens[:, 0] == EOS, PAD, free.tokens[:, 0])
    assert free.lengths[:, 0].max() == ROOM
    for length in range(ROOM):
        lengths = np.minimum(length, free.lengths[:, 0] - 1).astype(np.int32)
        found = run(strategy, prompts, lengths)
        for name in ("tokens", "lengths", "truncated", "log_probs", "scores"):
            one, other = (getattr(result, name)[:, 0] for result in (found, free))
            np.testing.assert_array_equal(one, other, err_msg=name)  # scores too, bit for bit


@pytest.mark.parametrize(("penalty", "alpha"), [("gnmt", 0.6), ("power", 1.0)])
def test_an_exhaustive_beam_finds_its_best_again_from_every_beginning_of_it(penalty, alpha):
    """A narrow one need not: with a prompt it looks closer at what is left."""
    table = np.random.default_rng(5).normal(size=(4, 4)).astype(np.float32)
    table[BOS, 3] = table[3, PAD] = table[PAD, EOS] = 3.0  # the best of all
    table[[BOS, 3], EOS] = -3.0

    def step_fn(tokens, cache):
        return jnp.asarray(table)[tokens], cache._replace(index=cache.index + tokens.shape[1])

    @jax.jit
    def best(prompts, lengths):
        return decode(
            step_fn, IndexedCache(), BeamSearch(40, penalty, alpha), batch_size=1, max_length=4,
            prompts=prompts, prompt_lengths=lengths, **IDS,
        )  # fmt: skip

    free = jax.device_get(best(None, None))
    length = free.lengths[0, 0]
    assert length > 2
    for kept in range(length):
        found = best(free.tokens[:, 0], np.array([kept]))
        np.testing.assert_array_equal(found.tokens[:, 0], free.tokens[:, 0])
        np.testing.assert_array_equal(found.scores[:, 0], free.scores[:, 0])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_batch_mates_order_and_room_for_prompts_change_nothing(strategy):
    whole = run(strategy, PROMPTS, LENGTHS)
    for rows in ([4, 1, 3], [0, 5, 2]):
        part = run(strategy, PROMPTS, LENGTHS, rows=np.array(rows))
        assert_same(part, jax.tree.map(lambda x, rows=rows: x[rows], whole))
    wide = np.pad(PROMPTS, ((0, 0), (0, 3)), constant_values=EOS)  # what does not count
    assert_same(run(strategy, wide, LENGTHS), whole)


@pytest.mark.parametrize("strategy", [Greedy(), BeamSearch(4)], ids=str)
def test_empty_prompts_change_nothing(strategy):
    free = run(strategy)
    assert_same(run(strategy, PROMPTS, np.zeros(BATCH, np.int32)), free)
    assert_same(run(strategy, PROMPTS[:, :0], np.zeros(BATCH, np.int32)), free)


def test_prompts_need_not_count_in_the_score():
    counted = run(Greedy(), PROMPTS, LENGTHS)
    generated = run(Greedy(), PROMPTS, LENGTHS, options=(("score_prompts", False),))
    np.testing.assert_array_equal(generated.tokens, counted.tokens)
    np.testing.assert_array_equal(generated.lengths, counted.lengths)
    of_prompts = counted.log_probs[:, 0] - generated.log_probs[:, 0]
    np.testing.assert_array_equal(of_prompts[LENGTHS == 0], 0.0)
    assert (of_prompts[LENGTHS > 0] < -0.01).all()


def test_samples_are_independent_and_the_first_are_those_of_fewer():
    many, few = (run(Sample(num_samples=n)) for n in (5, 2))
    for name in ("tokens", "lengths", "log_probs", "truncated"):
        np.testing.assert_array_equal(getattr(many, name)[:, :2], getattr(few, name))
    alone = run(Sample())
    np.testing.assert_array_equal(many.tokens[:, :1], alone.tokens)
    assert all(len(np.unique(rows, axis=0)) > 1 for rows in many.tokens)
    assert len(np.unique(many.lengths)) > 3
    ends = np.take_along_axis(many.tokens, many.lengths[:, :, None] - 1, axis=2)
    assert (ends == EOS).all()
    after = np.arange(ROOM) >= many.lengths[:, :, None]
    assert (many.tokens[after] == PAD).all() and (many.tokens[~after] == EOS).sum() == BATCH * 5


def test_the_model_reads_all_prompts_in_one_pass():
    shapes = []

    def step_fn(tokens, cache):
        shapes.append(tokens.shape)
        return jnp.zeros((*tokens.shape, VOCAB)), cache._replace(
            index=cache.index + tokens.shape[1]
        )

    decode(
        step_fn, IndexedCache(jnp.zeros((BATCH * 4, 2))), BeamSearch(4), batch_size=BATCH,
        max_length=ROOM, prompts=PROMPTS, prompt_lengths=LENGTHS, **IDS,
    )  # fmt: skip
    assert set(shapes) == {(BATCH, 5), (BATCH * 4, 1)}
    assert shapes.count((BATCH, 5)) == 1


@pytest.mark.parametrize(
    ("prompt", "length", "limit", "message"),
    [
        ([3, EOS, 4], 3, 8, r"prompts\[1\]: token 1 is 1, EOS.*leave it out"),
        ([3, 7, 4], 3, 8, r"prompts\[1\]: token 1 is 7, .*ids from 0 to 6"),
        ([3, -1, 4], 3, 8, r"prompts\[1\]: token 1 is -1"),
        ([3, 3, 4], 3, 3, r"prompts\[1\]: 3 tokens and EOS .* limit of 3 .*shorter one or raise"),
        ([3, 3, 4], 4, 8, r"prompts\[1\]: prompt_lengths=4 must be between 0 and 3"),
        ([3, 3, 4], -1, 8, r"prompts\[1\]: prompt_lengths=-1"),
    ],
)
def test_prompts_that_nothing_can_begin_with_are_refused(prompt, length, limit, message):
    prompts, lengths = np.array([[3, 3, 3], prompt]), np.array([3, length])
    limits = np.array([8, limit])

    def call():
        return decode(
            make_step(SENTENCES[:2]), Memory(jnp.zeros((2, FEATURES)), jnp.int32(3) - lengths,
            jnp.int32(0)), Greedy(), batch_size=2, max_length=ROOM, max_lengths=limits,
            prompts=prompts, prompt_lengths=lengths, **IDS,
        )  # fmt: skip

    with pytest.raises(InputError, match=message):
        call()
    with pytest.raises(InputError, match=message):
        check_prompts(prompts, lengths, limits, eos_id=EOS, vocab_size=VOCAB)


def test_what_stands_after_a_prompt_is_not_looked_at():
    check_prompts([[3, EOS, 99]], [1], [8], eos_id=EOS, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": PROMPTS[:2]}, r"prompts has shape \(2, 5\); expected \(6, P\)"),
        ({"prompt_lengths": LENGTHS[:2]}, r"prompt_lengths has shape \(2,\); expected \(6,\)"),
        ({"prompts": PROMPTS * 0.5}, "prompts is float32; give int32"),
    ],
)
def test_prompts_of_other_shapes_are_refused(arguments, message):
    arguments = {"prompts": PROMPTS, "prompt_lengths": LENGTHS} | arguments
    with pytest.raises(InputError, match=message):
        decode(
            make_step(SENTENCES), IndexedCache(), Greedy(), batch_size=BATCH, max_length=ROOM,
            **arguments, **IDS,
        )  # fmt: skip
