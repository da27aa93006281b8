"""The tree of a search: by hand, and against a search on plain lists."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from step_functions import one_token

from jaxformer.decoding.engine import IndexedCache, decode
from jaxformer.decoding.recording import Recording
from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
from jaxformer.visualization.beam_tree import DROPPED, FINISHED, KEPT, ROOT, beam_tree

PAD, EOS, BOS, A, B = range(5)
MARKOV = np.zeros((5, 5))
MARKOV[BOS, [EOS, A, B]] = 0.1, 0.5, 0.4
MARKOV[A, [EOS, A, B]] = 0.4, 0.1, 0.5
MARKOV[B, [EOS, A, B]] = 0.9, 0.05, 0.05


@partial(jax.jit, static_argnums=(1, 2))
def _search(tables, strategy, max_length):
    """Search in tables [B, T, V, V] of log p(next | last), one a step."""
    width = strategy.width

    def step_fn(tokens, index, cache):
        return tables[jnp.arange(tokens.size) // width, index, tokens], cache

    return decode(
        one_token(step_fn), IndexedCache(), strategy, batch_size=len(tables), bos_id=BOS,
        eos_id=EOS, pad_id=PAD, max_length=max_length, key=jax.random.key(1),
    )  # fmt: skip


def record(tables, strategy, max_length):
    """Tables [B, V, V], the same at all steps, or [B, T, V, V]."""
    if tables.ndim == 3:
        tables = np.repeat(tables[:, None], max_length, axis=1)
    with np.errstate(divide="ignore"):
        logits = jnp.asarray(np.log(tables), jnp.float32)
    return jax.device_get(_search(logits, Recording(strategy), max_length))


def rounded(tree):
    """(parent, step, token, probability, score as probability, state, rank) of each node."""
    return [
        (
            node.parent,
            node.step,
            node.token,
            round(np.exp(node.log_prob), 4),
            None if node.score is None else round(np.exp(node.score), 4),
            node.state,
            node.returned,
        )
        for node in tree.nodes
    ]


def test_a_tree_by_hand():
    # Step 1: A .5 and B .4 stay, EOS .1 is third of W = 2.
    # Step 2: B EOS .36 ends, A B .25 stays, A EOS .2 is third, A A .05 stays.
    # Step 3: A B EOS .225 ends, and with it the search: two have ended.
    tree = beam_tree(record(MARKOV[None], BeamSearch(2, alpha=0.0), 10))
    assert rounded(tree) == [
        (ROOT, 0, A, 0.5, None, KEPT, None),
        (ROOT, 0, B, 0.4, None, KEPT, None),
        (ROOT, 0, EOS, 0.1, None, DROPPED, None),
        (1, 1, EOS, 0.36, 0.36, FINISHED, 0),
        (0, 1, B, 0.25, None, KEPT, None),
        (0, 1, EOS, 0.2, None, DROPPED, None),
        (0, 1, A, 0.05, None, KEPT, None),
        (4, 2, EOS, 0.225, 0.225, FINISHED, 1),
        (6, 2, B, 0.025, None, KEPT, None),
        (6, 2, EOS, 0.02, None, DROPPED, None),
        (4, 2, A, 0.0125, None, KEPT, None),
    ]
    assert tree.width == 2 and tree.returned == (3, 7)
    assert tree.tokens(7) == [A, B, EOS] and tree.tokens(0) == [A]


def test_scores_are_penalised_and_the_limit_cuts():
    # Limit 2: B EOS .36 is what the model wants; A EOS .2 is forced and ranks too.
    tree = beam_tree(record(MARKOV[None], BeamSearch(2, "power", 1.0), 2))
    assert [node.state for node in tree.nodes] == [KEPT, KEPT, DROPPED, FINISHED, FINISHED]
    ends = [tree.nodes[node] for node in tree.returned]
    np.testing.assert_allclose([node.log_prob for node in ends], np.log([0.36, 0.2]), rtol=1e-6)
    np.testing.assert_allclose([node.score for node in ends], np.log([0.36, 0.2]) / 2, rtol=1e-6)


def test_greedy_is_a_chain_beside_its_runners_up():
    tree = beam_tree(record(MARKOV[None], Greedy(), 10))
    assert rounded(tree) == [
        (ROOT, 0, A, 0.5, None, KEPT, None),
        (ROOT, 0, B, 0.4, None, DROPPED, None),
        (0, 1, B, 0.25, None, KEPT, None),
        (0, 1, EOS, 0.2, None, DROPPED, None),
        (2, 2, EOS, 0.225, 0.225, FINISHED, 0),
        (2, 2, A, 0.0125, None, DROPPED, None),
    ]
    assert tree.returned == (4,)


def textbook_tree(table, width, limit, alpha):
    """Beam search on lists, as the docstring of BeamSearch has it: {tokens: state} and the best."""
    alive, ended, states = [((), 0.0)], [], {}
    for step in range(limit):
        last = step == limit - 1
        candidates = []
        for tokens, total in alive:
            row = table[step, tokens[-1] if tokens else BOS]
            best = sorted([EOS] if last else range(len(row)), key=row.__getitem__, reverse=True)
            candidates += [((*tokens, t), total + float(row[t])) for t in best[: width + 1]]
        candidates = [c for c in candidates if c[1] != -np.inf]
        candidates = sorted(candidates, key=lambda c: -c[1])[: 2 * width]
        growing = [c for c in candidates if c[0][-1] != EOS][:width]
        for rank, (tokens, total) in enumerate(candidates):
            states[tokens] = DROPPED
            if (tokens, total) in growing:
                states[tokens] = KEPT
            if tokens[-1] == EOS and rank < width:
                states[tokens] = FINISHED
                ended.append((total / ((5 + len(tokens)) / 6) ** alpha, tokens))
        alive = growing
        if len(ended) >= width or not alive:
            break
    return states, [tokens for _, tokens in sorted(ended, reverse=True)[:width]]


@pytest.mark.parametrize("width", [1, 4, 8])
def test_the_tree_is_that_of_a_search_on_lists(width):
    draw = np.random.default_rng(width)
    # Of one table for all steps, hypotheses of the same pairs in another order are equally good.
    tables = np.exp(draw.normal(size=(60, 9, 8, 8)) * 1.5)
    tables[..., [PAD, BOS]] = 0.0
    tables[::2, ..., EOS] *= 3.0  # every other one ends early
    tables /= tables.sum(axis=3, keepdims=True)
    recorded = record(tables, BeamSearch(width, alpha=0.7), 9)
    assert len(set(recorded.record.num_steps.tolist())) > 2  # some stop before others
    for row, table in enumerate(tables):
        tree = beam_tree(recorded, row)
        with np.errstate(divide="ignore"):
            states, best = textbook_tree(np.log(table), width, 9, 0.7)
        paths = [tuple(tree.tokens(number)) for number in range(len(tree.nodes))]
        found = dict(zip(paths, (node.state for node in tree.nodes), strict=True))
        assert len(paths) == len(found) and found == states
        assert [paths[node] for node in tree.returned] == best
        inner = {node.parent for node in tree.nodes}
        for number, node in enumerate(tree.nodes):
            assert node.parent < number and node.step == len(paths[number]) - 1
            assert node.state == KEPT or number not in inner
            steps, last = range(node.step + 1), (BOS, *paths[number][:-1])
            log_prob = np.log(table[steps, last, paths[number]]).sum()
            assert node.log_prob == pytest.approx(log_prob, abs=1e-5)
        leaves = len(tree.nodes) - len(inner - {ROOT})
        assert leaves == sum(number not in inner for number in range(len(tree.nodes)))


def test_the_tree_returns_what_the_search_returned():
    recorded = record(np.stack([MARKOV] * 2), BeamSearch(4), 6)
    for row in range(2):
        tree = beam_tree(recorded, row)
        result = recorded.result
        assert len(tree.returned) == result.num_hypotheses[row] == 4
        for slot, number in enumerate(tree.returned):
            length = result.lengths[row, slot]
            assert tree.tokens(number) == result.tokens[row, slot, :length].tolist()
            assert tree.nodes[number].score == result.scores[row, slot]
            assert tree.nodes[number].log_prob == result.log_probs[row, slot]
            assert tree.nodes[number].returned == slot


def test_a_drawn_token_stands_beside_the_best_other_one():
    recorded = record(np.stack([MARKOV] * 30), Sample(temperature=3.0), 12)
    drawn_below_best = 0
    for row in range(30):
        tree = beam_tree(recorded, row)
        for taken, other in zip(tree.nodes[::2], tree.nodes[1::2], strict=True):
            assert (taken.step, taken.parent) == (other.step, other.parent)
            assert taken.state in (KEPT, FINISHED) and other.state == DROPPED
            assert taken.token != other.token
            drawn_below_best += taken.log_prob < other.log_prob
        assert tree.tokens(tree.returned[0])[-1] == EOS
    assert drawn_below_best > 10
