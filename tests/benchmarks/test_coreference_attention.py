"""The pronoun benchmark finds pieces by their characters and counts what heads look at."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from random_translator import small_model

from jaxformer.config import TokenizerConfig
from jaxformer.data.builtin_corpus import coreference_sentences
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.decoding.translator import Translator
from jaxformer.models.transformer import Transformer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "coreference_attention.py"
SENTENCES = coreference_sentences(60, 1)


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("coreference_attention", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer():
    lines = [text for sentence in SENTENCES for text in sentence[:2]]
    return train_tokenizer(lines, TokenizerConfig(vocab_size=400), progress=False)


def test_spans_of_pieces(benchmark):
    pieces = ["▁The", "▁an", "imal", "▁it", "."]
    spans = benchmark.piece_spans(pieces, "The animal it.")
    assert spans == [(0, 3), (3, 6), (6, 10), (10, 13), (13, 14)]
    assert benchmark.overlapping(spans, (4, 10)) == [1, 2]
    assert benchmark.overlapping(spans, (11, 13)) == [3]
    with pytest.raises(ValueError, match="the pieces spell"):
        benchmark.piece_spans(pieces, "The animals it.")


def test_places_hold_the_words(benchmark, tokenizer):
    for sentence in SENTENCES:
        for side in ("en", "fr"):
            text = getattr(sentence, side)
            ids = tokenizer.encode([text])[0]
            places = benchmark.find_places(tokenizer, ids, sentence, side)
            pieces = tokenizer.pieces(ids)
            for mention, place in zip(sentence[2:], places, strict=True):
                word = text[slice(*getattr(mention, side))]
                assert word in "".join(pieces[i] for i in place)
                assert place == list(range(place[0], place[-1] + 1))


def test_hits_by_hand(benchmark):
    weights = np.zeros((1, 2, 4, 4), np.float32)
    weights[0, 0, 2] = [0.1, 0.2, 0.6, 0.1]  # its own position first, then key 1
    weights[0, 1, 2] = [0.3, 0.2, 0.4, 0.1]
    assert benchmark.hits(weights, [2], [2], [1]).tolist() == [[True, False]]
    assert benchmark.hits(weights, [2], [2], [0, 3]).tolist() == [[False, True]]
    assert benchmark.hits(weights, [2], [], [1]).tolist() == [[False, False]]
    weights[0, 1, 3] = [0.0, 1.0, 0.0, 0.0]
    assert benchmark.hits(weights, [2, 3], [2, 3], [1]).tolist() == [[True, True]]


def test_all_heads_are_measured(benchmark, tokenizer, parameters_of, monkeypatch):
    config = small_model(vocab_size=400)
    translator = Translator(Transformer(config), parameters_of(config), tokenizer, tokenizer)
    heads = benchmark.measure(translator, SENTENCES)
    assert len(heads) == 5 * 2 * 2
    assert [h.right for h in heads] == sorted((h.right for h in heads), reverse=True)
    assert all(h.right + h.other <= 1.0 for h in heads) and heads[0].right > 0.0
    monkeypatch.setattr(benchmark, "ROWS", 7)
    again = benchmark.measure(translator, SENTENCES)
    for one, other in zip(sorted(heads), sorted(again), strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:], abs=0.04)
