"""Random segmentations of a word: BPE-dropout, and sampling from a unigram language model.

SentencePiece can sample too, but it salts its generator per process, so the same seed gives
different pieces in the next process. The draws are therefore made here, from the characters of the
stored pieces; the text that the pieces spell never changes.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from typing import Any, Protocol

from jaxformer.data.tokenizers import NORMAL, SPACE_MARK, Tokenizer
from jaxformer.errors import InputError

Word = tuple[int, ...]  # ids
Merge = tuple[float, int, int]  # minus score, place, merged id: the smallest is the best
Chain = list[tuple[Word, list[Merge]]]  # states from best merge to best merge; the last has none
# A word's merges or lattice are cached, since few words make up most of a text. They grow with the
# square of its length, 4 KB at 10 pieces, so long words (text without spaces) are not cached.
WORDS_KEPT = 50_000
PIECES_KEPT = 16  # most pieces of a cached word
ATOM = "\ud800"  # marks pieces that are never split or joined; no piece holds a lone surrogate


class Segmenter(Protocol):
    """Draws segmentations with the pieces of one tokenizer."""

    starts_word: list[bool]  # by id; no piece of the vocabulary spans such a start

    def draw(self, word: Word, rate: float, generator: random.Random) -> Word:
        """Draw a segmentation of a word.

        Args:
          word: ids of its stored segmentation.
          rate: tokenizer.sampling_rate.
          generator: source of the draws.

        Returns:
          Ids that spell the same text.
        """

    def milder(self, rate: float) -> float:
        """A rate that gives fewer pieces."""


class Pieces:
    """The pieces of a tokenizer, as material for segmentations.

    Bytes, special ids and user-defined symbols are atoms, never split or joined. So is a piece with
    a character that has no piece of its own.

    Attributes:
      texts: by id, to be joined.
      scores: by id.
      ids: by text, of the pieces that may be joined.
      characters: by id, the ids of its characters; an atom is its own only character.
      starts_word: by id, whether a new word begins with it.
    """

    def __init__(self, tokenizer: Tokenizer):
        vocabulary = tokenizer.vocabulary
        self.texts = [
            text if kind == NORMAL else f"{ATOM}{index}"
            for index, (text, _, kind) in enumerate(vocabulary)
        ]
        self.scores = [score for _, score, _ in vocabulary]
        self.ids = {
            text: index for index, (text, _, kind) in enumerate(vocabulary) if kind == NORMAL
        }
        self.characters: list[Word] = []
        for index, (text, _, kind) in enumerate(vocabulary):
            parts = [self.ids.get(character) for character in text]
            self.characters.append((index,) if kind != NORMAL or None in parts else tuple(parts))
        self.starts_word = [text.startswith(SPACE_MARK) for text in self.texts]
        if any(SPACE_MARK in text[1:] for text in self.ids):
            self.starts_word = [False] * len(vocabulary)  # pieces span words: treat all as one

    def split(self, word: Word) -> Word:
        """The characters of a word's pieces."""
        return tuple(itertools.chain.from_iterable(self.characters[index] for index in word))


class BpeDropout:
    """BPE-dropout (Provilkov et al. 2020, algorithm 1).

    Each round drops every possible merge with probability `rate` and makes the best of the others;
    a word is done when none is left. Rate 0 gives SentencePiece's own segmentation.

    Args:
      tokenizer: a bpe model.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._pieces = Pieces(tokenizer)
        self.starts_word = self._pieces.starts_word
        self._merges: dict[Word, tuple[float, int] | None] = {}  # of a pair: minus score, merged id
        self._words: dict[Word, Chain] = {}  # of stored pieces
        self._detours: dict[Word, Chain] = {}  # of states that left the best way

    def draw(self, word: Word, rate: float, generator: random.Random) -> Word:
        """Draw a segmentation of a word.

        Args:
          word: ids of its stored segmentation.
          rate: probability to drop a merge, 0 < rate < 1.
          generator: source of the draws.

        Returns:
          Ids that spell the same text.
        """
        chain = self._words.get(word)
        if chain is None:
            characters = self._pieces.split(word)
            chain = keep(self._words, word, self._chain(characters), len(characters))
        while True:
            # How many rounds in a row make their best merge.
            rounds = int(math.log(1.0 - generator.random()) / math.log1p(-rate))
            if rounds >= len(chain) - 1:
                return chain[-1][0]
            state, merges = chain[rounds]
            # The best merge is dropped, and perhaps some after it.
            left_out = 1 + int(math.log(1.0 - generator.random()) / math.log(rate))
            if left_out >= len(merges):
                return state
            state = merged(state, merges[left_out])
            chain = self._detours.get(state)
            if chain is None:
                chain = keep(self._detours, state, self._chain(state), len(state))

    def milder(self, rate: float) -> float:
        """A rate with fewer pieces."""
        return rate / 2

    def _chain(self, state: Word) -> Chain:
        chain = []
        while merges := self._possible(state):
            chain.append((state, merges))
            state = merged(state, merges[0])
        return [*chain, (state, [])]

    def _possible(self, state: Word) -> list[Merge]:
        """The merges of a state, best first; ties go to the first place."""
        found = []
        for place, pair in enumerate(itertools.pairwise(state)):
            if pair not in self._merges:
                if len(self._merges) >= WORDS_KEPT:
                    self._merges.clear()
                index = self._pieces.ids.get("".join(self._pieces.texts[part] for part in pair))
                known = index is not None
                self._merges[pair] = (-self._pieces.scores[index], index) if known else None
            if merge := self._merges[pair]:
                found.append((merge[0], place, merge[1]))
        return sorted(found)


class UnigramSampling:
    """Sampling from a unigram language model (Kudo 2018, with all segmentations).

    A segmentation x of a word is drawn with P(x)^rate / sum over y of P(y)^rate.

    Args:
      tokenizer: a unigram model.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._pieces = Pieces(tokenizer)
        self.starts_word = self._pieces.starts_word
        self._longest = max(map(len, self._pieces.ids))
        self._lattices: dict[tuple[Word, float], list] = {}

    def draw(self, word: Word, rate: float, generator: random.Random) -> Word:
        """Draw a segmentation of a word.

        Args:
          word: ids of its stored segmentation.
          rate: exponent of the probabilities, above 0.
          generator: source of the draws.

        Returns:
          Ids that spell the same text.
        """
        lattice = self._lattice(word, rate)
        pieces: list[int] = []
        end = len(lattice) - 1
        while end:
            weights, starts, ids = lattice[end]
            choice = bisect.bisect(weights, generator.random() * weights[-1], 0, len(weights) - 1)
            pieces.append(ids[choice])
            end = starts[choice]
        return tuple(reversed(pieces))

    def milder(self, rate: float) -> float:
        """A rate with fewer pieces."""
        return rate * 2

    def _lattice(self, word: Word, rate: float) -> list:
        """For each end: cumulative weights, starts and ids of the pieces that end there."""
        lattice = self._lattices.get((word, rate))
        if lattice is not None:
            return lattice
        characters = self._pieces.split(word)
        texts = [self._pieces.texts[index] for index in characters]
        total, lattice = [0.0], [()]  # total: log of the summed weights of all paths to an end
        for end in range(1, len(texts) + 1):
            starts, ids = [], []
            for start in range(max(end - self._longest, 0), end):
                alone = start == end - 1
                index = characters[start] if alone else self._pieces.ids.get(
                    "".join(texts[start:end])
                )  # fmt: skip
                if index is not None:
                    starts.append(start)
                    ids.append(index)
            logs = [
                total[start] + rate * self._pieces.scores[index]
                for start, index in zip(starts, ids, strict=True)
            ]
            best = max(logs)
            weights = list(itertools.accumulate(math.exp(value - best) for value in logs))
            total.append(best + math.log(weights[-1]))
            lattice.append((weights, starts, ids))
        return keep(self._lattices, (word, rate), lattice, len(lattice))


def keep(cache: dict, key: Any, value: Any, pieces: int) -> Any:
    """Cache a value unless its word is long; a full cache is emptied first.

    Args:
      cache: at most WORDS_KEPT entries.
      key: of the word.
      value: what to cache.
      pieces: length of the word; above PIECES_KEPT nothing is cached.

    Returns:
      `value`.
    """
    if pieces <= PIECES_KEPT:
        if len(cache) >= WORDS_KEPT:
            cache.clear()
        cache[key] = value
    return value


def merged(state: Word, merge: Merge) -> Word:
    """The state after a merge."""
    _, place, index = merge
    return (*state[:place], index, *state[place + 2 :])


def make_segmenter(tokenizer: Tokenizer, where: str = "tokenizer.model_file") -> Segmenter:
    """The segmenter of a tokenizer; `where` is the field named in an error.

    Raises:
      InputError: a model of words or characters, which has only one segmentation of a text.
    """
    kinds = {"bpe": BpeDropout, "unigram": UnigramSampling}
    if tokenizer.model_type not in kinds:
        raise InputError(
            f"tokenizer.sampling_rate needs a bpe or unigram model, but {where} is a "
            f"{tokenizer.model_type} model with only one segmentation of a text; set "
            "tokenizer.sampling_rate=0, or use another model"
        )
    return kinds[tokenizer.model_type](tokenizer)
