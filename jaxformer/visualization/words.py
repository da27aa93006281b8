"""Which pieces form a word, and the attention between words instead of pieces."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from jaxformer.data.tokenizers import SPACE_MARK


def word_indices(
    pieces: Sequence[str], ids: Sequence[int], special_ids: Collection[int]
) -> list[int]:
    """The number of the word that each piece belongs to, from 0.

    A word is the text between spaces, punctuation included. A piece that begins with the space mark
    starts one, and so does the piece after one that ends with it, as in vocabularies that write the
    mark after the word. Consecutive spaces start one word, not several. Special pieces (BOS, EOS)
    are words of their own. Byte pieces and unknown ones belong to the word around them.

    Args:
      pieces: from `Tokenizer.pieces`.
      ids: of the pieces.
      special_ids: of the pieces that are not text.

    Returns:
      A word number for each piece.
    """
    words: list[int] = []
    word, open_word, only_marks = -1, False, False
    previous = ""
    for piece, token in zip(pieces, ids, strict=True):
        if token in special_ids:
            word, open_word = word + 1, False
        else:
            at_space = piece.startswith(SPACE_MARK) or previous.endswith(SPACE_MARK)
            if not open_word or (at_space and not only_marks):
                word, open_word, only_marks = word + 1, True, True
            only_marks = only_marks and not piece.strip(SPACE_MARK)
        previous = piece
        words.append(word)
    return words


def word_texts(pieces: Sequence[str], words: Sequence[int]) -> list[str]:
    """The text of each word: its pieces without the space marks around them."""
    texts = [""] * (words[-1] + 1 if len(words) else 0)
    for piece, word in zip(pieces, words, strict=True):
        texts[word] += piece
    return [text.strip(SPACE_MARK) for text in texts]


def join_words(
    weights: np.ndarray, query_words: Sequence[int], key_words: Sequence[int]
) -> np.ndarray:
    """Attention between words: summed over the pieces of a key, averaged over those of a query.

    Rows still sum to 1.

    Args:
      weights: `[..., T, S]`, between pieces.
      query_words: T numbers of `word_indices`.
      key_words: S numbers of `word_indices`.

    Returns:
      `[..., query words, key words]`, float64.
    """
    queries, keys = _membership(query_words), _membership(key_words)
    queries /= queries.sum(axis=0)
    return np.einsum("...ts,tq,sk->...qk", np.asarray(weights, np.float64), queries, keys)


def _membership(words: Sequence[int]) -> np.ndarray:
    """`[pieces, words]`, 1 where a piece belongs to a word."""
    return (np.asarray(words)[:, None] == np.arange(max(words, default=-1) + 1)).astype(np.float64)
