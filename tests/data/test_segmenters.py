"""Draws of single words, against the algorithm written out and against the model's own scores."""

import collections
import io
import itertools
import math
import random
from types import SimpleNamespace

import pytest

from jaxformer.config import TokenizerConfig
from jaxformer.data.segmenters import BpeDropout, UnigramSampling, make_segmenter
from jaxformer.data.subword_sampling import cut_words
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError

DRAWS = 20_000
LINES = [
    "the houses of the gardener are yellow",
    "  two  spaces and the gardens ",
    "\u2581 a \u2581\u2581mark\u2581 of the house",
    "½ ﬁ 你好 😀 houses",
    "tab\tthe end",
] * 3


def vocabulary(kind, *pieces):
    """A stand-in for a tokenizer: (piece, score), or (piece, score, kind)."""
    return SimpleNamespace(
        model_type=kind, vocabulary=[piece if len(piece) == 3 else (*piece, 1) for piece in pieces]
    )


def frequencies(segmenter, tokenizer, word, rate):
    generator = random.Random(1)
    texts = [text for text, _, _ in tokenizer.vocabulary]
    counts = collections.Counter(segmenter.draw(word, rate, generator) for _ in range(DRAWS))
    return {" ".join(texts[i] for i in ids): n / DRAWS for ids, n in counts.items()}


def dropout_distribution(state, ranks, rate):
    """Algorithm 1 of the paper, every outcome of every coin."""
    merges = [
        (ranks[a + b], place)
        for place, (a, b) in enumerate(itertools.pairwise(state))
        if a + b in ranks
    ]
    found = collections.Counter()
    for left_out in itertools.product([True, False], repeat=len(merges)):
        chance = math.prod(rate if out else 1 - rate for out in left_out)
        kept = [merge for merge, out in zip(merges, left_out, strict=True) if not out]
        if not kept:
            found[" ".join(state)] += chance
            continue
        place = min(kept)[1]
        after = (*state[:place], state[place] + state[place + 1], *state[place + 2 :])
        for text, share in dropout_distribution(after, ranks, rate).items():
            found[text] += chance * share
    return found


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_bpe_dropout_has_the_distribution_of_the_algorithm(rate):
    joined = ["ab", "abc", "bc", "aa", "aab", "ca"]
    tokenizer = vocabulary(
        "bpe", *[(text, -float(at)) for at, text in enumerate(joined)], ("a", -7.0), ("b", -8.0),
        ("c", -9.0),
    )  # fmt: skip
    expected = dropout_distribution(tuple("aabca"), {t: at for at, t in enumerate(joined)}, rate)
    found = frequencies(BpeDropout(tokenizer), tokenizer, (4, 8, 6), rate)
    assert abs(sum(expected.values()) - 1) < 1e-9 and len(expected) > 5
    for text in expected | found:
        assert abs(found.get(text, 0.0) - expected[text]) < 0.016, text


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_unigram_samples_by_the_power_of_the_probability(rate):
    scores = {"a": -2.0, "b": -3.0, "ab": -2.5, "ba": -3.5, "aba": -4.0}
    tokenizer = vocabulary("unigram", *scores.items())
    ways = ["a b a", "ab a", "a ba", "aba"]
    weights = [math.exp(rate * sum(scores[piece] for piece in way.split())) for way in ways]
    found = frequencies(UnigramSampling(tokenizer), tokenizer, (4,), rate)
    assert set(found) == set(ways)
    for way, weight in zip(ways, weights, strict=True):
        assert abs(found[way] - weight / sum(weights)) < 0.016, way


def test_a_seed_gives_the_same_draw_in_every_process():
    pieces = [(letter, -9.0) for letter in "abcd"] + [("ab", -1.0), ("cd", -2.0), ("abcd", -3.0)]
    bpe, unigram = (vocabulary(kind, *pieces) for kind in ("bpe", "unigram"))
    generator = random.Random(5)
    assert [BpeDropout(bpe).draw((6, 6), 0.4, generator) for _ in range(4)] == BPE_DRAWS
    generator = random.Random(5)
    assert [
        UnigramSampling(unigram).draw((6, 6), 0.1, generator) for _ in range(3)
    ] == UNIGRAM_DRAWS


BPE_DRAWS = [(6, 4, 5), (4, 2, 3, 4, 2, 3), (6, 6), (4, 2, 3, 4, 2, 3)]
UNIGRAM_DRAWS = [(0, 1, 5, 4, 5), (0, 1, 2, 3, 4, 2, 3), (4, 5, 4, 5)]


def test_atoms_are_neither_cut_nor_joined():
    pieces = [("a", -1.0), ("b", -1.0), ("ab", -1.0), ("<0x61>", 0.0, 6), ("ba", 0.0, 4),
              ("xa", -1.0)]  # fmt: skip
    for kind in ("bpe", "unigram"):
        segmenter = make_segmenter(vocabulary(kind, *pieces))
        generator = random.Random(0)
        drawn = {segmenter.draw((3, 2, 3, 4, 5), 0.5, generator) for _ in range(50)}
        assert drawn == {(3, 2, 3, 4, 5), (3, 0, 1, 3, 4, 5)}  # x has no piece of its own


def trained(**options):
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return Tokenizer(model.getvalue())


OPTIONS = {
    "as trained here": {},
    "pieces of several words": {"split_by_whitespace": False},
    "the mark behind a word": {"treat_whitespace_as_suffix": True},
    "a symbol of the user": {"user_defined_symbols": ["garden"]},
    "no bytes": {"byte_fallback": False},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_mild_draws_are_the_models_own_and_wild_ones_spell_the_same(model_type, options):
    settings = {
        "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "vocab_size": 320, "model_type": model_type,
        "character_coverage": 0.98,
    }  # fmt: skip
    tokenizer = trained(**settings | options)
    assert tokenizer.model_type == model_type
    segmenter = make_segmenter(tokenizer)
    mild, wild = (1e-12, 0.4) if model_type == "bpe" else (200.0, 0.01)
    different = 0
    for row in tokenizer.encode(LINES):
        drawn = []
        for rate in (mild, wild):
            generator = random.Random(3)
            words = cut_words(row, segmenter.starts_word)
            drawn.append([i for word in words for i in segmenter.draw(word, rate, generator)])
        assert drawn[0] == row
        assert tokenizer.decode(drawn[:1]) == tokenizer.decode([row])
        assert tokenizer.decode(drawn[1:]) == tokenizer.decode([row])
        different += drawn[1] != row
        if "user_defined_symbols" in options:
            symbol = [tokenizer.pieces([i]) for i in row].count(["garden"])
            assert [tokenizer.pieces([i]) for i in drawn[1]].count(["garden"]) == symbol
    assert different > len(LINES) / 3


def test_vocabulary_is_what_sentencepiece_says():
    tokenizer = train_tokenizer(LINES, TokenizerConfig(vocab_size=310), progress=False)
    processor = tokenizer._processor
    assert len(tokenizer.vocabulary) == 310
    for index, (text, score, kind) in enumerate(tokenizer.vocabulary):
        assert text == processor.id_to_piece(index) and score == processor.get_score(index)
        assert (kind == 6) == processor.is_byte(index) and (kind == 2) == (index == 3)
        assert (kind == 3) == (index < 3)
    assert tokenizer.model_type == "bpe"


@pytest.mark.parametrize("model_type", ["char", "word"])
def test_models_with_one_segmentation_are_refused(model_type):
    tokenizer = trained(model_type=model_type, vocab_size=100)
    message = f"tokenizer.sampling_rate .*bpe or unigram.* {model_type} model"
    with pytest.raises(InputError, match=f"{message}.*tokenizer.sampling_rate=0"):
        make_segmenter(tokenizer)


def test_the_cache_of_words_is_bounded(monkeypatch):
    monkeypatch.setattr("jaxformer.data.segmenters.WORDS_KEPT", 3)
    pieces = [("a", -1.0), ("b", -1.0), ("ab", 0.0), ("ba", 0.0)]
    words = list(itertools.product(range(4), repeat=2))
    for kind, cache in (("bpe", "_words"), ("unigram", "_lattices")):
        small, large = (make_segmenter(vocabulary(kind, *pieces)) for _ in range(2))
        for word in words:
            assert small.draw(word, 0.3, random.Random(1)) == large.draw(
                word, 0.3, random.Random(1)
            )
            assert len(getattr(small, cache)) <= 3 and len(getattr(small, "_merges", ())) <= 3
