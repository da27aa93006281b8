"""The built-in English-French corpus: sampled from a grammar, with rules for held-out splits.

No files are read: `generate_corpus` draws sentences from the patterns of this package. Each English
sentence has one correct translation, so BLEU on the held-out splits measures what was learned:

- `validation` and `test` hold sentences of which neither side is in training;
- `compositional` holds sentences with a noun and an adjective (attributive or predicate) that
  never occur together in training, though each is frequent there with others;
- `coreference_pairs` draws pronoun sentences whose (subject, verb, object, predicate) is in no
  split, whatever the seed.

The greetings of `everyday_phrases` are only in training, repeated so that they are learned: 15
times at 60,000 pairs or more, otherwise num_pairs / 4,000 times, at least once.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from itertools import accumulate
from random import Random
from typing import NamedTuple

from jaxformer.data.english_french import (
    coreference_patterns,
    question_patterns,
    sentence_patterns,
    subordinate_patterns,
)
from jaxformer.data.english_french.everyday_phrases import EVERYDAY_PHRASES
from jaxformer.data.english_french.sentence import Sentence
from jaxformer.errors import InputError

SPLITS = ("train", "validation", "test", "compositional")
HELD_OUT_SIZE = 1_000  # pairs of validation, of test and of compositional
MAX_PAIRS = 300_000  # distinct training pairs that the grammar easily generates
MAX_COREFERENCE_PAIRS = 10_000
COMBINATION_PERCENT = 8  # share of (noun, adjective) combinations held out from training
# The well-known coreference example; its combinations are held out too.
TRY_OUT_SENTENCES = (
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
)
# Pattern and its share of the sentences drawn, in tenths of a percent.
PATTERNS = (
    (coreference_patterns.coreference, 190),
    (subordinate_patterns.person_or_thing, 30),
    (subordinate_patterns.contrast, 40),
    (subordinate_patterns.cause, 40),
    (subordinate_patterns.transfer, 20),
    (subordinate_patterns.opinion, 30),
    (subordinate_patterns.relative, 30),
    (question_patterns.place_of_thing, 30),
    (question_patterns.yes_no, 40),
    (question_patterns.yes_no_description, 20),
    (question_patterns.reason_place_or_time, 30),
    (question_patterns.what, 15),
    (question_patterns.who, 15),
    (question_patterns.where_is, 15),
    (question_patterns.how_many, 15),
    (question_patterns.order, 35),
    (sentence_patterns.transitive, 145),
    (sentence_patterns.taste, 30),
    (sentence_patterns.intransitive, 50),
    (sentence_patterns.motion, 40),
    (sentence_patterns.description, 55),
    (sentence_patterns.location, 25),
    (sentence_patterns.existence, 15),
    (sentence_patterns.profession, 30),
    (sentence_patterns.object_pronoun, 25),
    (sentence_patterns.possessor, 30),
    (sentence_patterns.comparison, 15),
    (sentence_patterns.coordination, 20),
)
_FUNCTIONS = tuple(pattern for pattern, _ in PATTERNS)
_WEIGHTS = tuple(accumulate(weight for _, weight in PATTERNS))


@cache
def is_held_out_combination(noun: str, adjective: str) -> bool:
    """Whether `noun` and `adjective` (English) never occur together in training, for any seed."""
    digest = hashlib.blake2b(f"combination {noun} {adjective}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % 100 < COMBINATION_PERCENT


def has_held_out_combination(sentence: Sentence) -> bool:
    """Whether a (noun, adjective) combination of `sentence` is held out from training."""
    return any(is_held_out_combination(*pair) for pair in sentence.combinations)


class _Split:
    """Pairs without repetition on either side, excluding those already `taken`."""

    def __init__(self, size: int, taken: set[str]):
        self.pairs: list[tuple[str, str]] = []
        self._size = size
        self._taken = taken

    @property
    def is_full(self) -> bool:
        return len(self.pairs) >= self._size

    def add(self, sentence: Sentence) -> None:
        if self.is_full or sentence.en in self._taken or sentence.fr in self._taken:
            return
        self._taken.update((sentence.en, sentence.fr))
        self.pairs.append((sentence.en, sentence.fr))


def _draw(rng: Random) -> Sentence:
    """One sentence of any pattern, outside the combinations reserved for `coreference_pairs`."""
    while True:
        sentence = rng.choices(_FUNCTIONS, cum_weights=_WEIGHTS)[0](rng)
        key = sentence.coreference
        if not (key and coreference_patterns.is_held_out(key)):
            return sentence


def _held_out_splits(seed: int) -> dict[str, list[tuple[str, str]]]:
    rng = Random(f"held-out {seed}")
    taken = {text for pair in EVERYDAY_PHRASES for text in pair}
    splits = {name: _Split(HELD_OUT_SIZE, taken) for name in SPLITS[1:]}
    turn = 0
    while not all(split.is_full for split in splits.values()):
        sentence = _draw(rng)
        if has_held_out_combination(sentence):
            splits["compositional"].add(sentence)
        else:
            turn += 1
            splits["validation" if turn % 2 else "test"].add(sentence)
    return {name: split.pairs for name, split in splits.items()}


def _training_pairs(
    num_pairs: int, seed: int, held_out: dict[str, list[tuple[str, str]]]
) -> list[tuple[str, str]]:
    rng = Random(f"train {seed}")
    forbidden = {text for pairs in held_out.values() for pair in pairs for text in pair}
    known = {english for english, _ in EVERYDAY_PHRASES}
    pairs = list(EVERYDAY_PHRASES)
    while len(pairs) < num_pairs:
        sentence = _draw(rng)
        if sentence.en in known or sentence.en in forbidden or sentence.fr in forbidden:
            continue
        if has_held_out_combination(sentence):
            continue
        known.add(sentence.en)
        pairs.append((sentence.en, sentence.fr))
    copies = min(15, max(1, num_pairs // 4_000))
    pairs.extend(EVERYDAY_PHRASES * (copies - 1))
    rng.shuffle(pairs)
    return pairs


def generate_corpus(num_pairs: int = 60_000, seed: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Generate all four splits as lists of (English, French).

    Args:
      num_pairs: distinct training pairs; the everyday phrases among them are repeated, so the
        training list is slightly longer.
      seed: of the sampling. The three held-out splits depend on it, but not on `num_pairs`.

    Returns:
      `{"train": [...], "validation": [...], "test": [...], "compositional": [...]}`.

    Raises:
      InputError: `num_pairs` exceeds what the grammar generates, or is less than the phrases.
    """
    if not len(EVERYDAY_PHRASES) <= num_pairs <= MAX_PAIRS:
        raise InputError(
            f"data.num_pairs={num_pairs} must be between {len(EVERYDAY_PHRASES)} and {MAX_PAIRS}, "
            "the limit of the built-in grammar"
        )
    held_out = _held_out_splits(seed)
    return {"train": _training_pairs(num_pairs, seed, held_out), **held_out}


@cache
def _fresh_choices() -> dict[tuple[bool, bool], tuple[coreference_patterns.Choice, ...]]:
    """Held-out coreference choices by (resolves to the subject, genders differ)."""
    found: dict[tuple[bool, bool], list[coreference_patterns.Choice]] = {}
    for choice in coreference_patterns.all_choices():
        antecedent = choice.subject if choice.resolves_to_subject else choice.target
        if coreference_patterns.is_held_out(choice.key) and not is_held_out_combination(
            antecedent.en, choice.predicate.en
        ):
            differs = choice.subject.gender != choice.target.gender
            found.setdefault((choice.resolves_to_subject, differs), []).append(choice)
    return {group: tuple(choices) for group, choices in found.items()}


class Mention(NamedTuple):
    """Where something is named: (first character, one past the last) in each text."""

    en: tuple[int, int]
    fr: tuple[int, int]


class CoreferenceSentence(NamedTuple):
    """A pair with a pronoun, its referent, and the other noun before it."""

    en: str
    fr: str
    pronoun: Mention
    referent: Mention
    other: Mention


def coreference_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Only the pairs of `coreference_sentences`.

    Returns:
      `count` pairs (English, French).
    """
    return [(sentence.en, sentence.fr) for sentence in coreference_sentences(count, seed)]


def coreference_sentences(count: int, seed: int) -> list[CoreferenceSentence]:
    """Draw fresh pronoun sentences: combinations that are in no split of any seed.

    Pronouns for the subject and for the object alternate. The two nouns differ in gender in nine of
    ten sentences and always agree in number, so only the predicate identifies the referent.

    Args:
      count: distinct sentences to draw.
      seed: of the sampling.

    Returns:
      `count` sentences, each with the positions of its pronoun and of the two nouns.

    Raises:
      InputError: `count` is negative or above `MAX_COREFERENCE_PAIRS`.
    """
    if not 0 <= count <= MAX_COREFERENCE_PAIRS:
        raise InputError(f"count={count} must be between 0 and {MAX_COREFERENCE_PAIRS}")
    rng = Random(f"coreference {seed}")
    known = set(TRY_OUT_SENTENCES)
    found: list[CoreferenceSentence] = []
    while len(found) < count:
        group = (len(found) % 2 == 0, len(found) // 2 % 10 != 9)
        sentence = coreference_patterns.realize(rng, rng.choice(_fresh_choices()[group]))
        if sentence.en not in known:
            known.add(sentence.en)
            found.append(_with_mentions(sentence, resolves_to_subject=group[0]))
    return found


def _with_mentions(sentence: Sentence, resolves_to_subject: bool) -> CoreferenceSentence:
    """Find the nouns and the pronoun; the object comes right before "because"."""
    clauses = (r" because (it|they) ", r" parce qu'(ils?|elles?) ")
    found = [
        re.match(rf".*?\b({re.escape(subject)})\b.*\b({re.escape(target)}){clause}", text, re.I)
        for text, clause, subject, target in zip(
            (sentence.en, sentence.fr), clauses, *sentence.nouns, strict=True
        )
    ]
    subject, target, pronoun = (Mention(*(text.span(i) for text in found)) for i in (1, 2, 3))
    nouns = (subject, target) if resolves_to_subject else (target, subject)
    return CoreferenceSentence(sentence.en, sentence.fr, pronoun, *nouns)
