"""A recorded search is the search itself, bit for bit, and its record holds what it weighed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from step_functions import one_token

from jaxformer.decoding.engine import IndexedCache, decode
from jaxformer.decoding.recording import Recording
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample

PAD, EOS, BOS, VOCAB, ROOM = 0, 1, 2, 9, 10
STRATEGIES = [
    Greedy(),
    BeamSearch(1),
    BeamSearch(4),
    BeamSearch(8, "power", 1.0),
    Sample(top_k=5),
    Sample(temperature=1.5),
]

_random = np.random.default_rng(7)
TABLE = _random.normal(size=(VOCAB, 16)).astype(np.float32)
TURNS = _random.normal(size=(ROOM, 16)).astype(np.float32)
OUTPUT = (_random.normal(size=(16, VOCAB)) * 1.5).astype(np.float32)


@partial(jax.jit, static_argnums=1)
def search(encoded, strategy, limits):
    """A small recurrent model, whose state must follow the beams."""
    rows = jnp.repeat(encoded, strategy.width, axis=0)

    def step_fn(tokens, index, state):
        state = jnp.tanh(0.7 * state + jnp.asarray(TABLE)[tokens] + jnp.asarray(TURNS)[index][None])
        return jnp.tanh(state + rows) @ OUTPUT, state

    return decode(
        one_token(step_fn), IndexedCache(jnp.zeros_like(rows)), strategy,
        batch_size=len(encoded), bos_id=BOS, eos_id=EOS, pad_id=PAD, max_length=ROOM,
        max_lengths=limits, key=jax.random.key(5),
    )  # fmt: skip


@pytest.fixture(scope="module")
def sentences():
    encoded = np.random.default_rng(1).normal(size=(24, 16)).astype(np.float32)
    return encoded, np.arange(24, dtype=np.int32) % 11


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_the_result_is_that_of_the_search_alone_bit_for_bit(sentences, strategy):
    alone = search(sentences[0], strategy, sentences[1])
    recorded = search(sentences[0], Recording(strategy), sentences[1])
    for name in alone._fields:
        one, other = (np.asarray(getattr(result, name)) for result in (alone, recorded.result))
        assert one.dtype == other.dtype and one.tobytes() == other.tobytes(), name
    assert len(np.unique(alone.lengths)) > 4


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_steps_are_recorded_until_a_sentence_is_done(sentences, strategy):
    result, record = jax.device_get(search(sentences[0], Recording(strategy), sentences[1]))
    longest = np.max(result.lengths, axis=1)
    if strategy.width == 1:
        assert (record.num_steps == longest).all()
    else:
        assert (record.num_steps >= longest).all() and (record.num_steps <= sentences[1]).all()
        assert (record.num_steps[sentences[1] > 0] < sentences[1][sentences[1] > 0]).any()
    after = np.arange(ROOM)[None] >= record.num_steps[:, None]
    assert (record.log_probs[after] == -np.inf).all() and (record.rows[after] == -1).all()
    assert (record.tokens[after] == -1).all() and (record.scores[after] == -np.inf).all()


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_what_lives_on_is_continued_and_what_ended_is_returned(sentences, strategy):
    result, record = jax.device_get(search(sentences[0], Recording(strategy), sentences[1]))
    width = strategy.width
    ended = record.scores != -np.inf
    assert (record.tokens[ended] == EOS).all() and (record.rows[ended] == -1).all()
    for row in range(24):
        steps = record.num_steps[row]
        for step in range(steps):
            rows = record.rows[row, step]
            alive = sorted(rows[rows >= 0].tolist())
            assert alive == list(range(len(alive))) and len(alive) <= width
            if step + 1 < steps:
                possible = record.log_probs[row, step + 1] != -np.inf
                assert set(record.parents[row, step + 1][possible].tolist()) <= set(alive)
        scores = sorted(record.scores[row][ended[row]].tolist(), reverse=True)
        count = int(result.num_hypotheses[row])
        assert scores[:count] == result.scores[row, :count].tolist()
        assert count == min(width, len(scores))


def test_a_recording_hashes_by_its_strategy():
    assert Recording(BeamSearch(4)) == Recording(BeamSearch(4)) != Recording(BeamSearch(5))
    assert hash(Recording(Greedy())) == hash(Recording(Greedy()))
    assert Recording(Sample()).needs_key and not Recording(Greedy()).needs_key
