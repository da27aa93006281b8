"""Pieces into words: spaces, bytes, special pieces; and attention between words."""

import numpy as np
import pytest
from random_translator import small_tokenizer

from jaxformer.visualization.words import join_words, word_indices, word_texts


def words_of(pieces, special=("<s>", "</s>")):
    """Word numbers, where a piece's id is its own text."""
    return word_indices(pieces, pieces, set(special))


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], []),
        (["▁the", "▁an", "im", "al", ".", "</s>"], [0, 1, 1, 1, 1, 2]),
        (["<s>", "▁L", "'", "animal"], [0, 1, 1, 1]),
        (["<s>", "</s>"], [0, 1]),
        (["<s>", "o", "h", "▁no"], [0, 1, 1, 2]),
        # An emoji in bytes inside a word, and one after a space of its own.
        (["▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁b"], [0, 0, 0, 0, 0, 1]),
        (["▁a", "▁", "<0xF0>", "<0x9F>", "!", "▁b"], [0, 1, 1, 1, 1, 2]),
        # Spaces in a row stand before one word.
        (["▁a", "▁", "▁", "▁b", "c"], [0, 1, 1, 1, 1]),
        (["▁", "</s>"], [0, 1]),
        (["▁a", "<unk>", "▁b"], [0, 0, 1]),
        # Vocabularies that write the mark behind the word.
        (["the▁", "an", "imal▁", "ran", "</s>"], [0, 1, 1, 2, 3]),
        (["▁New▁York", "▁is"], [0, 1]),
    ],
)
def test_words(pieces, expected):
    assert words_of(pieces) == expected


def test_words_of_a_sentence_are_what_stands_between_spaces():
    tokenizer = small_tokenizer()
    text = "the old cat, near the 😀house and شمس  e\u0301te\u0301"
    ids = [*tokenizer.encode([text])[0], tokenizer.eos_id]
    words = word_indices(tokenizer.pieces(ids), ids, {tokenizer.eos_id})
    decoded = [
        tokenizer.decode([[i for i, w in zip(ids, words, strict=True) if w == word]])[0].strip()
        for word in range(words[-1])
    ]
    assert decoded == text.split()
    assert words == sorted(words) and set(words) == set(range(len(text.split()) + 1))


def test_texts_of_words():
    pieces = ["▁the", "▁an", "imal", ".", "</s>"]
    assert word_texts(pieces, words_of(pieces)) == ["the", "animal.", "</s>"]
    assert word_texts([], []) == []


def test_joined_attention_by_hand():
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [1.0, 0.0, 0.0, 0.0]])
    joined = join_words(weights, [0, 0, 1], [0, 1, 1, 2])
    # Word 0 of the queries: the mean of its two rows; word 1 of the keys: the sum of its columns.
    np.testing.assert_allclose(joined, [[0.3, 0.35, 0.35], [1.0, 0.0, 0.0]], atol=1e-12)


def test_joined_rows_sum_to_one_for_all_layers_and_heads():
    weights = np.random.default_rng(0).dirichlet(np.ones(6), size=(3, 2, 5)).astype(np.float32)
    joined = join_words(weights, [0, 1, 1, 1, 2], [0, 0, 1, 2, 2, 3])
    assert joined.shape == (3, 2, 3, 4)
    np.testing.assert_allclose(joined.sum(axis=-1), 1.0, atol=1e-6)
