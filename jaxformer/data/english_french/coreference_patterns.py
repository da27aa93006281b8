"""Pronouns that only the predicate resolves: it was too tired, it was too wide.

A frame fixes a verb, the kinds of its subject and object, and predicates that fit only one of the
two. "The animal didn't cross the street because it was too wide." therefore has one correct
translation, in which the French pronoun and adjective agree with the antecedent.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from jaxformer.data.english_french import clauses
from jaxformer.data.english_french.clauses import Complement
from jaxformer.data.english_french.lexicon import ADJECTIVE, NOUNS_OF_KIND, Adjective, Noun
from jaxformer.data.english_french.noun_phrases import Phrase, choose_determiner, noun_phrase
from jaxformer.data.english_french.sentence import Sentence, finish, object_of
from jaxformer.data.english_french.verb_lexicon import TRANSITIVE_VERB, Verb

HELD_OUT_PERCENT = 10
_ANIMATE = "tired sick young lazy shy weak nervous sad calm happy"


@dataclass(frozen=True)
class Frame:
    """A verb with the kinds and predicates of its subject and of its object."""

    verb: Verb
    subject_kind: str
    object_kind: str
    subject_predicates: tuple[Adjective, ...]
    object_predicates: tuple[Adjective, ...]


@dataclass(frozen=True)
class Choice:
    """One way to fill a frame; `key` names it, `resolves_to_subject` tells the antecedent."""

    verb: Verb
    subject: Noun
    target: Noun
    predicate: Adjective
    resolves_to_subject: bool

    @property
    def key(self) -> str:
        return f"{self.subject.en} {self.verb.en} {self.target.en} {self.predicate.en}"


def _frame(
    verb: str, subject_kind: str, object_kind: str, subject_predicates: str, object_predicates: str
) -> Frame:
    return Frame(
        TRANSITIVE_VERB[verb],
        subject_kind,
        object_kind,
        tuple(ADJECTIVE[word] for word in subject_predicates.split()),
        tuple(ADJECTIVE[word] for word in object_predicates.split()),
    )


# A frame listed twice is drawn twice as often.
FRAMES = (
    _frame("cross", "animal", "way", _ANIMATE, "wide long narrow noisy"),
    _frame("cross", "animal", "way", _ANIMATE, "wide long narrow noisy"),
    _frame("cross", "animal", "way", _ANIMATE, "wide long narrow noisy"),
    _frame("cross", "animal", "water", _ANIMATE, "wide long deep cold"),
    _frame("cross", "vehicle", "way", "heavy slow fast big small", "wide long narrow"),
    _frame("cross", "vehicle", "water", "heavy slow big small", "wide long deep"),
    _frame("follow", "vehicle", "way", "heavy slow big", "narrow long wide"),
    _frame("climb", "animal", "barrier", _ANIMATE, "high"),
    _frame("eat", "animal", "food", _ANIMATE, "hot cold salty sweet bitter hard"),
    _frame("eat", "animal", "food", _ANIMATE, "hot cold salty sweet bitter hard"),
    _frame("push", "animal", "container", _ANIMATE, "heavy full"),
    _frame("push", "animal", "furniture", _ANIMATE, "heavy"),
    _frame("lift", "animal", "container", _ANIMATE, "heavy full"),
    _frame("enter", "animal", "building", _ANIMATE, "dark noisy"),
    _frame("enter", "animal", "room", _ANIMATE, "narrow dark noisy"),
)
# The best-known examples are always held out, whatever their digest.
_ALWAYS_HELD_OUT = frozenset(("animal cross street tired", "animal cross street wide"))
_held_out: dict[str, bool] = {}


def is_held_out(key: str) -> bool:
    """Whether a combination is excluded from every split, for `coreference_pairs` to test."""
    if key not in _held_out:
        digest = hashlib.blake2b(f"coreference {key}".encode(), digest_size=4).digest()
        share = int.from_bytes(digest, "big") % 100
        _held_out[key] = key in _ALWAYS_HELD_OUT or share < HELD_OUT_PERCENT
    return _held_out[key]


def all_choices() -> tuple[Choice, ...]:
    """Every way to fill every frame, each once, in the order of `FRAMES`."""
    found: dict[str, Choice] = {}
    for frame in FRAMES:
        for subject in NOUNS_OF_KIND[frame.subject_kind]:
            for target in NOUNS_OF_KIND[frame.object_kind]:
                for resolves in (True, False):
                    words = frame.subject_predicates if resolves else frame.object_predicates
                    for word in words:
                        choice = Choice(frame.verb, subject, target, word, resolves)
                        found.setdefault(choice.key, choice)
    return tuple(found.values())


def _draw_choice(rng: Random) -> Choice:
    frame = rng.choice(FRAMES)
    subject = rng.choice(NOUNS_OF_KIND[frame.subject_kind])
    target = rng.choice(NOUNS_OF_KIND[frame.object_kind])
    # Mostly different genders: only these sentences teach the resolution.
    while subject.gender == target.gender and rng.random() < 0.6:
        subject = rng.choice(NOUNS_OF_KIND[frame.subject_kind])
        target = rng.choice(NOUNS_OF_KIND[frame.object_kind])
    resolves = rng.random() < 0.5
    word = rng.choice(frame.subject_predicates if resolves else frame.object_predicates)
    return Choice(frame.verb, subject, target, word, resolves)


def _draw_phrase(rng: Random, noun: Noun, is_plural: bool) -> Phrase:
    names = ("the",) * 8 + ("this", "my", "our", "her")
    return noun_phrase(choose_determiner(rng, noun, names), noun, is_plural)


def _written(noun: Noun, is_plural: bool) -> tuple[str, str]:
    return (noun.en_plural, noun.fr_plural) if is_plural else (noun.en, noun.fr)


def realize(rng: Random, choice: Choice, same_number: bool = True) -> Sentence:
    """Draw determiners, number, tense and degree for `choice`.

    Args:
      rng: source of the draws.
      choice: verb, nouns and predicate.
      same_number: make subject and object both singular or both plural, so that the number of the
        pronoun does not reveal the antecedent.

    Returns:
      The sentence pair, with `coreference` and `nouns` set.
    """
    plural = rng.random() < 0.2
    target_plural = plural if same_number else not plural
    subject = _draw_phrase(rng, choice.subject, plural)
    target = _draw_phrase(rng, choice.target, target_plural)
    antecedent = subject if choice.resolves_to_subject else target
    pronoun = Phrase(
        en="they" if antecedent.is_plural else "it",
        fr=(antecedent.pronoun,),
        person=antecedent.person,
        gender=antecedent.gender,
        is_plural=antecedent.is_plural,
        pronoun=antecedent.pronoun,
    )
    tense = rng.choice(("past", "past", "past", "present", "can"))
    left = clauses.statement(subject, choice.verb, tense, True, object_of(target, choice.verb))
    degree = rng.choice((("too", "trop"), ("too", "trop"), ("too", "trop"), ("very", "très")))
    rest = clauses.adjective_complement(pronoun, choice.predicate, degree)
    right = clauses.copula(pronoun, tense == "past", False, rest)
    clause = Complement(f"{left.en} because {right.en}", (*left.fr, "parce", "que", *right.fr))
    sentence = finish(clause, ".", said=((antecedent.noun, choice.predicate.en),))
    nouns = (_written(choice.subject, plural), _written(choice.target, target_plural))
    return sentence._replace(coreference=choice.key, nouns=nouns)


def coreference(rng: Random) -> Sentence:
    """The animal didn't cross the street because it was too tired."""
    return realize(rng, _draw_choice(rng), same_number=rng.random() < 0.85)
