from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from step_functions import one_token

from jaxformer.decoding.engine import DecodingResult, IndexedCache, decode
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
from jaxformer.errors import InputError

PAD, EOS, BOS = range(3)
IDS = {"pad_id": PAD, "eos_id": EOS, "bos_id": BOS}
VOCAB, FEATURES = 9, 16
STRATEGIES = [Greedy(), Sample(top_k=6, top_p=0.95), BeamSearch(4)]

_random = np.random.default_rng(0)
TOKEN_FEATURES = _random.normal(size=(VOCAB, FEATURES)).astype(np.float32)
TURNS = _random.normal(size=(32, FEATURES)).astype(np.float32)
OUTPUT = _random.normal(size=(FEATURES, VOCAB)).astype(np.float32) * 2


def encode(batch_size, seed=1):
    """What an encoder would give: one vector a sentence."""
    return np.random.default_rng(seed).normal(size=(batch_size, FEATURES)).astype(np.float32)


def history_logits(encoded, history, length):
    """Logits [R, V] from the sentence's vector and all tokens so far, in their order.

    Sums of products and no matrix product, whose rounding could differ with the number of rows.
    """
    seen = (jnp.arange(history.shape[1]) < length)[None, :, None]
    turned = jnp.asarray(TOKEN_FEATURES)[history] * TURNS[None, : history.shape[1]]
    hidden = jnp.tanh(encoded + jnp.sum(jnp.where(seen, turned, 0.0), axis=1))
    return jnp.sum(hidden[:, :, None] * OUTPUT[None], axis=1)


def decode_history(encoded, strategy, limits=None, row_ids=None, max_length=12, dtype="float32"):
    """Decode a model that reads each row's whole history from a nested cache."""
    limits = np.full(len(encoded), max_length) if limits is None else np.asarray(limits)
    row_ids = np.arange(len(encoded)) if row_ids is None else np.asarray(row_ids)
    return jax.device_get(_decode_history(encoded, limits, row_ids, strategy, max_length, dtype))


@partial(jax.jit, static_argnums=(3, 4, 5))
def _decode_history(encoded, limits, row_ids, strategy, max_length, dtype):
    batch_size = len(encoded)
    rows = jnp.repeat(encoded, strategy.width, axis=0)
    room = jnp.arange(max_length)[None]

    def step_fn(tokens, index, cache):
        history = jnp.where(room == index, tokens[:, None], cache["layer_0"]["tokens"])
        logits = history_logits(rows, history, index + 1)
        return logits.astype(dtype), {"layer_0": {"tokens": history}}

    empty = jnp.zeros((batch_size * strategy.width, max_length), jnp.int32)
    return decode(
        one_token(step_fn), IndexedCache({"layer_0": {"tokens": empty}}), strategy,
        batch_size=batch_size,
        max_length=max_length, max_lengths=limits, key=jax.random.key(11), row_ids=row_ids, **IDS
    )  # fmt: skip


def run(function, strategy, **arguments):
    """Decode a model without memory, which reads one token at a time."""
    return decode(one_token(function), IndexedCache(), strategy, **IDS, **arguments)


def assert_same(actual: DecodingResult, expected: DecodingResult):
    for name in ("tokens", "lengths", "truncated", "num_hypotheses"):
        assert np.array_equal(getattr(actual, name), getattr(expected, name)), name
    np.testing.assert_allclose(actual.log_probs, expected.log_probs, rtol=1e-5)
    np.testing.assert_allclose(actual.scores, expected.scores, rtol=1e-5)


def take(result: DecodingResult, rows) -> DecodingResult:
    return DecodingResult(*(np.asarray(field)[rows] for field in result))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_the_cache_follows_the_beams(strategy):
    # Score every returned hypothesis again from its own tokens: a beam that had read the cache
    # of another one would have summed other log-probabilities.
    encoded = encode(8)
    result = decode_history(encoded, strategy)
    assert result.num_hypotheses.tolist() == [strategy.width] * 8
    assert result.lengths.max() >= 8
    rows = np.repeat(encoded, strategy.width, axis=0)
    tokens = result.tokens.reshape(-1, 12)
    history = np.insert(tokens[:, :-1], 0, BOS, axis=1)
    totals = np.zeros(len(rows))
    for index in range(12):
        log_probs = jax.nn.log_softmax(history_logits(rows, history, index + 1))
        gains = np.asarray(log_probs)[np.arange(len(rows)), tokens[:, index]]
        totals += np.where(index < result.lengths.reshape(-1), gains, 0.0)
    np.testing.assert_allclose(result.log_probs.reshape(-1), totals, rtol=1e-4)


def test_beams_do_change_rows_in_that_test():
    parents_seen = []

    @dataclass(frozen=True)
    class Watched(BeamSearch):
        def advance(self, space, step, log_probs, state):
            state, tokens, parents = super().advance(space, step, log_probs, state)
            jax.debug.callback(lambda p: parents_seen.append(np.asarray(p)), parents)
            return state, tokens, parents

    decode_history(encode(8), Watched(4))
    jax.effects_barrier()
    moved = [(parents != np.arange(4)).any(axis=1).mean() for parents in parents_seen[1:4]]
    assert min(moved) > 0.5


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_result_does_not_depend_on_batch_mates(strategy):
    encoded, limits, ids = encode(8), np.arange(8) + 3, np.arange(8) + 100
    whole = decode_history(encoded, strategy, limits, ids)
    for rows in ([7, 2, 4], [5, 1, 3]):
        part = decode_history(encoded[rows], strategy, limits[rows], ids[rows])
        assert_same(part, take(whole, rows))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_result_does_not_depend_on_padding_rows(strategy):
    encoded = encode(3)
    alone = decode_history(encoded, strategy)
    padded = np.full((8, FEATURES), np.nan, np.float32)  # what an empty row may hold
    padded[[0, 2, 7]] = encoded
    limits = [12, 0, 12, 0, 0, 0, 0, 12]
    result = decode_history(padded, strategy, limits, row_ids=[0, 9, 1, 9, 9, 9, 9, 2])
    assert_same(take(result, [0, 2, 7]), alone)
    empty = take(result, [1, 3, 4, 5, 6])
    assert (empty.tokens == PAD).all() and (empty.lengths == 0).all()
    assert (empty.scores == -np.inf).all() and (empty.log_probs == -np.inf).all()
    assert not empty.truncated.any() and empty.num_hypotheses.tolist() == [0] * 5


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_result_does_not_depend_on_the_static_bound(strategy):
    encoded, limits = encode(8), [1, 2, 3, 4, 6, 8, 10, 12]
    short = decode_history(encoded, strategy, limits)
    long = decode_history(encoded, strategy, limits, max_length=20)
    assert (long.tokens[:, :, 12:] == PAD).all()
    assert_same(long._replace(tokens=long.tokens[:, :, :12]), short)


def test_limits_above_the_bound_are_the_bound():
    cut = decode_history(encode(3), Greedy(), [12, 13, 1000])
    assert_same(cut, decode_history(encode(3), Greedy()))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_eos_is_forced_at_the_limit_and_flagged(strategy):
    # A model that all but never ends: p(EOS) = 1 / (1 + 2 e^8) of three possible tokens.
    logits = jnp.array([-jnp.inf, 0.0, -jnp.inf, 8.0, 8.0])
    limits = jnp.array([1, 3, 6, 0])

    def step_fn(tokens, index, cache):
        return jnp.broadcast_to(logits[None], (tokens.size, 5)), cache

    result = decode(
        one_token(step_fn), IndexedCache(), strategy, batch_size=4, max_length=6,
        max_lengths=limits, key=jax.random.key(0), **IDS
    )  # fmt: skip
    assert result.lengths[:, 0].tolist() == [1, 3, 6, 0]
    assert result.truncated[:, 0].tolist() == [True, True, True, False]
    tokens = np.asarray(result.tokens)[:, 0]
    assert tokens[0].tolist() == [EOS] + [PAD] * 5
    assert tokens[1, 2] == tokens[2, 5] == EOS
    assert set(tokens[1, :2]) | set(tokens[2, :5]) <= {3, 4}
    end, go_on = -np.log1p(2 * np.exp(8.0)), 8.0 - np.log1p(2 * np.exp(8.0))
    expected = [end, 2 * go_on + end, 5 * go_on + end, -np.inf]
    np.testing.assert_allclose(result.log_probs[:, 0], expected, rtol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_an_end_of_the_models_own_at_the_limit_is_not_truncated(strategy):
    # BOS -> 3 -> EOS, surely.
    table = np.full((5, 5), -np.inf, np.float32)
    table[BOS, 3] = table[3, EOS] = 0.0

    def step_fn(tokens, index, cache):
        return jnp.asarray(table)[tokens], cache

    result = run(step_fn, strategy, batch_size=1, max_length=2, key=jax.random.key(0))
    assert result.tokens[0, 0].tolist() == [3, EOS]
    assert result.truncated[0, 0].tolist() is False
    assert result.num_hypotheses.tolist() == [1]
    assert result.log_probs[0, 0].tolist() == 0.0


def test_the_loop_ends_when_all_sentences_are_done():
    steps, fed = [], []
    countdown = jnp.array([2, 5, 1])  # tokens before EOS

    def step_fn(tokens, index, cache):
        jax.debug.callback(lambda i, t: (steps.append(int(i)), fed.append(t.tolist())),
                           index, tokens, ordered=True)  # fmt: skip
        token = jnp.where(index >= countdown, EOS, 3)
        return jax.nn.one_hot(token, 5) * 20.0, cache

    result = run(step_fn, Greedy(), batch_size=3, max_length=1000)
    jax.effects_barrier()
    assert steps == [0, 1, 2, 3, 4, 5]
    assert fed == [[BOS] * 3, [3, 3, 3], [3, 3, PAD], [PAD, 3, PAD], [PAD, 3, PAD], [PAD, 3, PAD]]
    assert result.lengths.tolist() == [[3], [6], [2]]


def test_padding_rows_alone_cost_no_step():
    def step_fn(tokens, index, cache):
        jax.debug.callback(lambda: steps.append(1))
        return jnp.zeros((tokens.size, 5)), cache

    steps = []
    limits = jnp.zeros(2, jnp.int32)
    result = run(step_fn, Greedy(), batch_size=2, max_length=5, max_lengths=limits)
    jax.effects_barrier()
    assert steps == []
    assert result.lengths.tolist() == [[0], [0]]


def test_jit_compiles_once_a_shape():
    traces = []

    @partial(jax.jit, static_argnums=2)
    def search(table, limits, strategy):
        def step_fn(tokens, index, cache):
            traces.append(tokens.shape)
            return table[tokens], cache

        batch_size = limits.shape[0]
        return run(step_fn, strategy, batch_size=batch_size, max_length=7, max_lengths=limits)

    table = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    search(table, np.array([3, 7]), BeamSearch(3))
    once = len(traces)
    search(table + 1, np.array([5, 0]), BeamSearch(3))
    search(table, np.array([1, 2]), BeamSearch(3))
    assert len(traces) == once and set(traces) == {(6,)}
    search(table, np.array([1, 2, 3]), BeamSearch(3))
    assert len(traces) == 2 * once and traces[-1] == (9,)
    search(table, np.array([1, 2, 3]), BeamSearch(3, alpha=0.0))
    assert len(traces) == 3 * once


@pytest.mark.parametrize(
    ("strategy", "dtype"), [(Greedy(), "float16"), (BeamSearch(4), "bfloat16")]
)
def test_log_probabilities_are_float32_whatever_the_logits(strategy, dtype):
    result = decode_history(encode(8), strategy, dtype=dtype)
    assert result.log_probs.dtype == result.scores.dtype == jnp.float32
    # Sums of values rounded to 8 or 11 bits would lie on a coarse grid.
    long = np.asarray(result.log_probs)
    assert (long != np.asarray(jnp.asarray(long).astype(dtype), np.float32)).mean() > 0.9


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_nan_logits_surface_as_a_nan_score_of_their_sentence_alone(strategy):
    encoded = encode(3)
    clean = decode_history(encoded, strategy)
    encoded[1] = np.nan
    result = decode_history(encoded, strategy)
    assert np.isnan(result.scores[1, 0]) and np.isnan(result.log_probs[1, 0])
    assert_same(take(result, [0, 2]), take(clean, [0, 2]))


def test_nan_in_a_dead_beam_touches_nothing():
    table = np.random.default_rng(4).normal(size=(VOCAB, VOCAB)).astype(np.float32)

    def search(dead_value):
        def step_fn(tokens, index, cache):
            dead = (index == 0) & (jnp.arange(tokens.size) % 3 > 0)  # all but beam 0 at the start
            return jnp.where(dead[:, None], dead_value, jnp.asarray(table)[tokens]), cache

        return jax.jit(lambda: run(step_fn, BeamSearch(3), batch_size=2, max_length=6))()

    assert_same(search(np.nan), search(0.0))
    assert np.isfinite(search(np.nan).scores).all()


def test_an_impossible_forced_end_is_no_hypothesis():
    logits = jnp.array([-jnp.inf, -jnp.inf, -jnp.inf, 1.0, 0.0])

    def step_fn(tokens, index, cache):
        return jnp.broadcast_to(logits[None], (tokens.size, 5)), cache

    for strategy in (Greedy(), BeamSearch(1), BeamSearch(2)):
        result = run(step_fn, strategy, batch_size=1, max_length=4)
        assert result.num_hypotheses.tolist() == [0]
        assert np.asarray(result.lengths).max() == 0 and (np.asarray(result.tokens) == PAD).all()
        assert (np.asarray(result.scores) == -np.inf).all()


def test_the_engine_runs_a_strategy_it_has_never_seen():
    @dataclass(frozen=True)
    class Recite(Greedy):
        """Say `text`, whatever the model thinks."""

        text: tuple[int, ...] = ()
        needs_key: ClassVar[bool] = False

        def advance(self, space, step, log_probs, state):
            wanted = jnp.asarray(self.text)[step.index]
            log_probs = jnp.where(jnp.arange(VOCAB) == wanted, log_probs, -jnp.inf)
            return super().advance(space, step, log_probs, state)

    result = decode_history(encode(2), Recite((5, 3, 8, EOS)))
    assert result.tokens[:, 0].tolist() == [[5, 3, 8, EOS] + [PAD] * 8] * 2
    assert (np.asarray(result.log_probs) < -1.0).all()


def fixed_logits(tokens, cache):
    return jnp.zeros((*tokens.shape, 5)), cache._replace(index=cache.index + tokens.shape[1])


def call(step_fn=fixed_logits, cache=(), strategy=None, **changes):
    arguments = {"batch_size": 2, "max_length": 4, **IDS, **changes}
    return decode(step_fn, IndexedCache(cache), strategy or Greedy(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"max_length": 0}, "max_length=0 must be at least 1"),
        ({"eos_id": 5}, "eos_id=5 must be between 0 and 4"),
        ({"pad_id": -1}, "pad_id=-1 must be between 0 and 4"),
        ({"max_lengths": np.array([1, 2, 3])}, r"max_lengths has shape \(3,\).*\(2,\)"),
        ({"strategy": Sample()}, r"key=None, but Sample\(.*jax.random.key\(seed\)"),
        (
            {"strategy": Sample(), "key": 0, "row_ids": np.arange(3)},
            r"row_ids has shape \(3,\); expected \(2,\)",
        ),
        (
            {"cache": {"keys": np.zeros((2, 3))}, "strategy": BeamSearch(4)},
            r"cache.rows\['keys'\] has shape \(2, 3\).*batch_size \* width = 2 \* 4",
        ),
        ({"cache": [np.float32(1)]}, r"cache.rows\[0\] has shape \(\)"),
        (
            {"step_fn": lambda t, c: (jnp.zeros((2, 5)), c)},
            r"logits of shape \(2, 5\); expected \(2, 1, V\)",
        ),
        (
            {"step_fn": one_token(
                lambda t, i, c: (jnp.zeros((2, 5)), {"a": c["a"].astype(jnp.bfloat16)})),
             "cache": {"a": np.zeros((2, 3), np.float32)}},
            r"cache.rows\['a'\] as bfloat16\[2, 3\]; it was given float32\[2, 3\]",
        ),
        (
            {"step_fn": one_token(lambda t, i, c: (jnp.zeros((2, 5)), None)),
             "cache": {"a": np.zeros(2)}},
            "step_fn returned the cache PyTreeDef",
        ),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        call(**arguments)
