import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from step_functions import one_token

from jaxformer.decoding.engine import IndexedCache, SearchSpace, Step, decode
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
from jaxformer.errors import InputError

PAD, EOS, BOS, A, B = range(5)
IDS = {"pad_id": PAD, "eos_id": EOS, "bos_id": BOS}

# p(next | last), over EOS, A and B; PAD and BOS are impossible.
MARKOV = np.zeros((5, 5))
MARKOV[BOS, [EOS, A, B]] = 0.1, 0.5, 0.4
MARKOV[A, [EOS, A, B]] = 0.4, 0.1, 0.5
MARKOV[B, [EOS, A, B]] = 0.9, 0.05, 0.05


def markov(table, strategy, batch_size=1, **arguments):
    """Decode a model whose next token depends on the last one alone."""
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(table), jnp.float32)
    return jax.device_get(_markov(logits, strategy, batch_size, **arguments))


@partial(jax.jit, static_argnums=(1, 2), static_argnames="max_length")
def _markov(logits, strategy, batch_size, **arguments):
    def step_fn(tokens, index, cache):
        return logits[tokens], cache

    return decode(
        one_token(step_fn), IndexedCache(), strategy, batch_size=batch_size, **IDS, **arguments
    )


def random_tree(seed, vocab_size, depth, eos_bonus=0.0):
    """log p(token | prefix) for every prefix: a model without any structure.

    Prefixes are numbered as in a heap: the root 0, child t of node n is n * V + t + 1.
    """
    nodes = sum(vocab_size**level for level in range(depth))
    logits = np.random.default_rng(seed).normal(size=(nodes, vocab_size)).astype(np.float32) * 2
    logits[:, EOS] += eos_bonus
    return np.asarray(jax.nn.log_softmax(logits, axis=-1))


@partial(jax.jit, static_argnums=(1, 2))
def decode_tree(trees, strategy, max_length, **arguments):
    """Decode one sentence a tree; the cache keeps each row's node, so it must follow the beams."""
    width, vocab_size = strategy.width, trees.shape[-1]

    def step_fn(tokens, index, cache):
        child = cache["node"] * vocab_size + tokens + 1
        node = jnp.where(index == 0, 0, child)
        rows = jnp.arange(node.size) // width
        return trees[rows, jnp.minimum(node, trees.shape[1] - 1)], {"node": node}

    cache = {"node": jnp.zeros(len(trees) * width, jnp.int32)}
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2}
    return decode(
        one_token(step_fn),
        IndexedCache(cache),
        strategy,
        batch_size=len(trees),
        max_length=max_length,
        **ids,
        **arguments,
    )


def penalty(name, length, alpha):
    return ((5 + length) / 6) ** alpha if name == "gnmt" else length**alpha


def every_sequence(tree, vocab_size, limit, name, alpha):
    """(score, tokens) of every sequence that ends in EOS within the limit, best first."""
    found = []
    for length in range(1, limit + 1):
        others = [t for t in range(vocab_size) if t != EOS]
        for prefix in itertools.product(others, repeat=length - 1):
            node, log_prob = 0, 0.0
            for token in (*prefix, EOS):
                log_prob += float(tree[node, token])
                node = node * vocab_size + token + 1
            found.append((log_prob / penalty(name, length, alpha), (*prefix, EOS)))
    return sorted(found, key=lambda pair: -pair[0])


def textbook_beam_search(tree, width, vocab_size, limit, name, alpha):
    """The docstring of BeamSearch, word by word, on lists: (score, tokens, truncated)."""
    alive, finished = [(0.0, (), 0)], []
    for index in range(limit):
        at_limit = index == limit - 1
        candidates = []
        for log_prob, tokens, node in alive:
            for token in [EOS] if at_limit else range(vocab_size):
                total = log_prob + float(tree[node, token])
                cut = at_limit and int(np.argmax(tree[node])) != EOS
                child = node * vocab_size + token + 1
                candidates.append((total, (*tokens, token), child, cut))
        candidates.sort(key=lambda candidate: -candidate[0])
        for total, tokens, _, cut in candidates[:width]:
            if tokens[-1] == EOS:
                finished.append((total / penalty(name, index + 1, alpha), tokens, cut))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[0])[:width]
        if len(finished) == width:
            break
        growing = [c[:3] for c in candidates[: 2 * width] if c[1][-1] != EOS]
        alive = growing[:width]
    return finished


def hypotheses(result, row=0):
    """The filled slots of a sentence as (score, tokens, truncated)."""
    tokens, lengths, _, scores, truncated, count = (np.asarray(field)[row] for field in result)
    return [
        (float(scores[i]), tuple(tokens[i, : lengths[i]].tolist()), bool(truncated[i]))
        for i in range(count)
    ]


def test_beam_search_by_hand():
    # Step 1: A .5, B .4, EOS .1 (third of W = 2: dropped).          alive A .5, B .4
    # Step 2: B EOS .36 (finished), A B .25, A EOS .2 (third: dropped), A A .05.
    # Step 3: A B EOS .225 (finished), A A B .025, ...: two finished, done.
    result = markov(MARKOV, BeamSearch(width=2, alpha=0.0), max_length=10)
    assert result.tokens[0, 0].tolist() == [B, EOS] + [PAD] * 8
    assert result.tokens[0, 1].tolist() == [A, B, EOS] + [PAD] * 7
    assert result.lengths.tolist() == [[2, 3]]
    np.testing.assert_allclose(result.log_probs, np.log([[0.36, 0.225]]), rtol=1e-6)
    np.testing.assert_allclose(result.scores, np.log([[0.36, 0.225]]), rtol=1e-6)
    assert result.truncated.tolist() == [[False, False]]
    assert result.num_hypotheses.tolist() == [2]


def test_the_two_length_penalties_rank_by_hand_differently():
    # gnmt, alpha 1:  ln .36 / (7/6) = -0.8757   ln .225 / (8/6) = -1.1187
    # power, alpha 1: ln .36 / 2     = -0.5108   ln .225 / 3     = -0.4972
    gnmt = markov(MARKOV, BeamSearch(2, "gnmt", 1.0), max_length=10)
    assert gnmt.lengths.tolist() == [[2, 3]]
    np.testing.assert_allclose(gnmt.scores, [[-0.8757, -1.1187]], atol=1e-4)
    power = markov(MARKOV, BeamSearch(2, "power", 1.0), max_length=10)
    assert power.lengths.tolist() == [[3, 2]]
    np.testing.assert_allclose(power.scores, [[-0.4972, -0.5108]], atol=1e-4)
    np.testing.assert_allclose(power.log_probs, np.log([[0.225, 0.36]]), rtol=1e-6)


def test_the_limit_ends_all_beams_by_hand():
    # Limit 2: B EOS .36 is what the model wants; A EOS .2 is forced, for A B is likelier.
    result = markov(MARKOV, BeamSearch(width=2, alpha=0.0), max_length=2)
    assert result.tokens[0].tolist() == [[B, EOS], [A, EOS]]
    np.testing.assert_allclose(result.log_probs, np.log([[0.36, 0.2]]), rtol=1e-6)
    assert result.truncated.tolist() == [[False, True]]
    # Limit 1: one beam is alive, so there is one hypothesis.
    result = markov(MARKOV, BeamSearch(width=2, alpha=0.0), max_length=1)
    assert result.tokens[0].tolist() == [[EOS], [PAD]]
    np.testing.assert_allclose(result.log_probs, [[np.log(0.1), -np.inf]], rtol=1e-6)
    assert result.truncated.tolist() == [[True, False]]
    assert result.num_hypotheses.tolist() == [1]


def test_greedy_by_hand():
    result = markov(MARKOV, Greedy(), max_length=10)
    assert result.tokens[0, 0, :4].tolist() == [A, B, EOS, PAD]
    np.testing.assert_allclose(result.log_probs, [[np.log(0.5 * 0.5 * 0.9)]], rtol=1e-6)
    assert np.array_equal(result.scores, result.log_probs)
    assert result.truncated.tolist() == [[False]]


def test_equal_tokens_are_taken_by_lowest_id():
    table = np.zeros((5, 5))
    table[[BOS, A, B]] = [0.0, 0.2, 0.0, 0.4, 0.4]
    assert markov(table, Greedy(), max_length=4).tokens[0, 0].tolist() == [A, A, A, EOS]
    result = markov(table, BeamSearch(2, alpha=0.0), max_length=2)
    assert result.tokens[0].tolist() == [[A, EOS], [B, EOS]]


def test_beam_of_one_is_greedy():
    trees = np.stack([random_tree(seed, 5, 6) for seed in range(200)])
    limits = jnp.arange(200) % 6 + 1
    greedy = decode_tree(trees, Greedy(), 6, max_lengths=limits)
    beam = decode_tree(trees, BeamSearch(1, "power", 0.7), 6, max_lengths=limits)
    for field in ("tokens", "lengths", "log_probs", "truncated", "num_hypotheses"):
        assert np.array_equal(getattr(greedy, field), getattr(beam, field)), field
    assert set(np.asarray(greedy.lengths).ravel().tolist()) == {1, 2, 3, 4, 5, 6}
    assert np.asarray(greedy.truncated).mean() > 0.1


@pytest.mark.parametrize(
    ("name", "alpha"), [("gnmt", 0.0), ("gnmt", 0.6), ("gnmt", 1.7), ("power", 1.0)]
)
def test_a_wide_beam_is_brute_force(name, alpha):
    # Of 4 tokens, 3 go on: 1 + 3 + 9 + 27 = 40 sequences of at most 4 tokens.
    trees = np.stack([random_tree(seed, 4, 4) for seed in range(20)])
    result = decode_tree(trees, BeamSearch(40, name, alpha), 4)
    assert result.num_hypotheses.tolist() == [40] * 20
    for row, tree in enumerate(trees):
        expected = every_sequence(tree, 4, 4, name, alpha)
        found = hypotheses(result, row)
        assert found[0][1] == expected[0][1]
        assert {h[1] for h in found} == {tokens for _, tokens in expected}
        np.testing.assert_allclose(
            [h[0] for h in found], [score for score, _ in expected], rtol=1e-5
        )


@pytest.mark.parametrize(("name", "width"), [("gnmt", 1), ("gnmt", 5), ("power", 2), ("power", 3)])
def test_beam_search_does_what_its_docstring_says(name, width):
    # With the bonus all beams want to end, and the last of 2W candidates are needed to go on.
    trees = np.stack([random_tree(seed, 6, 5, eos_bonus=seed % 3) for seed in range(240)])
    limits = np.where(np.arange(240) < 60, np.arange(240) % 5 + 1, 5)
    result = decode_tree(trees, BeamSearch(width, name, 0.8), 5, max_lengths=jnp.asarray(limits))
    result = jax.device_get(result)
    for row, tree in enumerate(trees):
        expected = textbook_beam_search(tree, width, 6, int(limits[row]), name, 0.8)
        found = hypotheses(result, row)
        assert [h[1:] for h in found] == [h[1:] for h in expected], row
        np.testing.assert_allclose([h[0] for h in found], [h[0] for h in expected], rtol=1e-5)


def test_hypotheses_are_sorted_distinct_and_end_in_their_only_eos():
    trees = np.stack([random_tree(seed, 6, 5) for seed in range(30)])
    result = decode_tree(trees, BeamSearch(5), 5)
    scores = np.asarray(result.scores)
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    for row in range(30):
        found = [tokens for _, tokens, _ in hypotheses(result, row)]
        assert len(found) == len(set(found)) == 5
        assert all(tokens.count(EOS) == 1 and tokens[-1] == EOS for tokens in found)
    after = np.arange(5) >= np.asarray(result.lengths)[:, :, None]
    assert (np.asarray(result.tokens)[after] == 0).all()


def test_a_search_without_any_beam_left_stops_with_fewer_hypotheses():
    table = np.zeros((5, 5))
    table[BOS, [A, B]] = 0.6, 0.4
    table[A, EOS] = table[B, EOS] = 1.0
    steps = []

    def step_fn(tokens, index, cache):
        jax.debug.callback(lambda i: steps.append(int(i)), index)
        with np.errstate(divide="ignore"):
            return jnp.asarray(np.log(table), jnp.float32)[tokens], cache

    strategy = BeamSearch(4, alpha=0.0)
    result = decode(
        one_token(step_fn), IndexedCache(), strategy, batch_size=1, max_length=50, **IDS
    )
    jax.effects_barrier()
    assert steps == [0, 1]
    assert result.num_hypotheses.tolist() == [2]
    assert [h[1] for h in hypotheses(result)] == [(A, EOS), (B, EOS)]
    assert result.scores[0, 2:].tolist() == [-np.inf, -np.inf]
    assert result.lengths[0].tolist() == [2, 2, 0, 0]


SHARPENERS = [Sample(temperature=1e-6), Sample(top_k=1), Sample(top_p=1e-6)]


@pytest.mark.parametrize("strategy", SHARPENERS, ids=str)
def test_sampling_from_the_head_alone_is_greedy(strategy):
    trees = np.stack([random_tree(seed, 5, 6) for seed in range(100)])
    greedy = decode_tree(trees, Greedy(), 6)
    sample = decode_tree(trees, strategy, 6, key=jax.random.key(3))
    for field in greedy._fields:
        assert np.array_equal(getattr(greedy, field), getattr(sample, field)), field


def first_draws(strategy, probabilities):
    """4000 draws from one distribution over PAD, EOS, BOS, A, B: the strategy's first step."""
    with np.errstate(divide="ignore"):
        log_probs = jnp.asarray(np.log(probabilities), jnp.float32)
    space = SearchSpace(4000, 2, EOS, PAD)
    keys = jax.random.split(jax.random.key(0), 4000)
    step = Step(jnp.int32(0), jnp.zeros(4000, bool), keys)
    log_probs = jnp.broadcast_to(log_probs[None, None], (4000, 1, 5))
    _, tokens, parents = strategy.advance(space, step, log_probs, strategy.init(space))
    assert parents is None
    return np.bincount(np.asarray(tokens)[:, 0], minlength=5)[[EOS, A, B]] / 4000


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (Sample(), [0.1, 0.5, 0.4]),
        (Sample(0.5), [0.01 / 0.42, 0.25 / 0.42, 0.16 / 0.42]),
        (Sample(top_k=2), [0, 5 / 9, 4 / 9]),
        # .5 reaches .45 alone; .5 + .4 reach .85; it takes all three to reach .95.
        (Sample(top_p=0.45), [0, 1, 0]),
        (Sample(top_p=0.85), [0, 5 / 9, 4 / 9]),
        (Sample(top_p=0.95), [0.1, 0.5, 0.4]),
        # Of the two of top_k, 5/9 = .56 reach .55 and do not reach .6.
        (Sample(top_k=2, top_p=0.55), [0, 1, 0]),
        (Sample(top_k=2, top_p=0.6), [0, 5 / 9, 4 / 9]),
    ],
    ids=str,
)
def test_draws_follow_the_model_within_the_support(strategy, expected):
    drawn = first_draws(strategy, MARKOV[BOS])
    np.testing.assert_allclose(drawn, expected, atol=0.03)  # standard error: 0.008 at most
    assert np.array_equal(drawn == 0, np.array(expected) == 0)


def test_top_k_and_top_p_keep_the_lowest_of_equal_tokens():
    flat = np.array([0, 1 / 3, 0, 1 / 3, 1 / 3])
    for strategy in (Sample(top_k=2), Sample(top_p=0.5)):
        drawn = first_draws(strategy, flat)
        assert drawn[2] == 0 and drawn[:2].min() > 0.45
    # One of two halves reaches .5 exactly.
    assert first_draws(Sample(top_p=0.5), [0, 0.5, 0, 0.5, 0]).tolist() == [1, 0, 0]


def test_log_probabilities_of_samples_are_the_models():
    result = markov(MARKOV, Sample(2.0, 2), 50, max_length=6, key=jax.random.key(1))
    for row in range(50):
        _, tokens, _ = hypotheses(result, row)[0]
        p = np.prod([MARKOV[a, b] for a, b in itertools.pairwise((BOS, *tokens))])
        np.testing.assert_allclose(result.log_probs[row, 0], np.log(p), rtol=1e-5)


def test_samples_are_reproducible_by_key_and_differ_by_row_and_step():
    coin = np.zeros((5, 5))
    coin[[BOS, A, B]] = [0.0, 1e-6, 0.0, 0.5, 0.5]
    draws = [
        markov(coin, Sample(), 50, max_length=11, key=jax.random.key(seed)).tokens[:, 0, :10]
        for seed in (5, 5, 6)
    ]
    assert np.array_equal(draws[0], draws[1])
    assert 0.3 < (draws[0] == draws[2]).mean() < 0.7
    # Of 1024 sequences, 50 rows draw 48.8 different ones; a constant one has chance 1 / 512.
    assert len(set(map(tuple, draws[0].tolist()))) > 40
    assert sum(len(set(row)) == 1 for row in draws[0].tolist()) < 3


def test_samples_follow_the_row_id_and_not_the_batch():
    strategy = Sample(top_k=4, top_p=0.9)
    trees = np.stack([random_tree(seed, 6, 5) for seed in range(12)])
    key = jax.random.key(7)
    whole = decode_tree(trees, strategy, 5, key=key)
    picked = np.array([9, 2, 5])
    part = decode_tree(trees[picked], strategy, 5, key=key, row_ids=jnp.asarray(picked))
    assert np.array_equal(part.tokens, np.asarray(whole.tokens)[picked])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BeamSearch(width=0), "width=0 must be at least 1"),
        (lambda: BeamSearch(length_penalty="wu"), "length_penalty='wu' is not one of gnmt, power"),
        (lambda: BeamSearch(alpha=-0.1), "alpha=-0.1 must be at least 0"),
        (lambda: Sample(temperature=0.0), "temperature=0.0 draws nothing; .* search greedily"),
        (lambda: Sample(temperature=-1.0), "temperature=-1.0 must be at least 1e-06"),
        (lambda: Sample(num_samples=0), "num_samples=0 must be at least 1"),
        (lambda: Sample(top_k=-1), "top_k=-1 must be at least 0"),
        (lambda: Sample(top_p=1.2), "top_p=1.2 must be between 1e-06 and 1"),
    ],
)
def test_bad_fields_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        build()
