"""One sentence of the built-in corpus and the draws that all patterns share."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from jaxformer.data.english_french import english_grammar, french_grammar
from jaxformer.data.english_french.clauses import Complement
from jaxformer.data.english_french.lexicon import Adjective
from jaxformer.data.english_french.noun_phrases import (
    Combination,
    Phrase,
    draw_definite,
    draw_noun,
    draw_object,
    predicates_of,
)
from jaxformer.data.english_french.verb_lexicon import PLACES, TIMES, Verb

DEGREES = (("", ""), ("", ""), ("very", "très"), ("too", "trop"))
_TENSES = ("present",) * 7 + ("past",) * 4 + ("future", "can", "must", "want")


class Sentence(NamedTuple):
    """One pair with the (noun, adjective) combinations in it and, for a pronoun sentence whose
    predicate decides the antecedent, the key "subject verb object predicate" and the nouns as they
    are written, English and French, of the subject and of the object."""

    en: str
    fr: str
    combinations: tuple[Combination, ...] = ()
    coreference: str = ""
    nouns: tuple[tuple[str, str], ...] = ()


def finish(clause: Complement, mark: str, *phrases: Phrase, said: tuple = ()) -> Sentence:
    """Join a clause into a sentence that ends in `mark`; `said` are its predicate combinations."""
    combinations = tuple(said)
    for phrase in phrases:
        combinations += phrase.combinations
    return Sentence(
        english_grammar.sentence(clause.en) + mark,
        french_grammar.sentence(clause.fr, mark),
        combinations,
    )


def draw_predicate(rng: Random, subject: Phrase) -> Adjective:
    """An adjective for `subject` of another scale than those it already carries."""
    described = [word for _, word in subject.combinations]
    choices = predicates_of(subject.kind)
    scales = {adjective.scale for adjective in choices if adjective.en in described}
    return rng.choice([adjective for adjective in choices if adjective.scale not in scales])


def draw_degree(rng: Random, adjective: Adjective, degrees: tuple = DEGREES) -> tuple[str, str]:
    """Nothing, very or too; always nothing for adjectives without degrees (red, open)."""
    return rng.choice(degrees) if adjective.gradable else ("", "")


def said_of(subject: Phrase, adjective: Adjective) -> tuple[Combination, ...]:
    """The combination a predicate adjective makes; pronouns and names make none."""
    return ((subject.noun, adjective.en),) if subject.noun else ()


def object_of(phrase: Phrase, verb: Verb) -> Complement:
    """`phrase` as the object of `verb`, with the French preposition if it takes one."""
    words = (verb.preposition, *phrase.fr) if verb.preposition else phrase.fr
    return Complement(" " + phrase.en, words)


def draw_verb_object(
    rng: Random, verb: Verb, negated: bool, subject: Phrase | None = None
) -> Phrase:
    """An object for `verb` that is another noun than the subject's."""
    noun = draw_noun(rng, verb.objects)
    while subject is not None and noun.en == subject.noun:
        noun = draw_noun(rng, verb.objects)
    if verb.definite or noun.kind == "person":
        return draw_definite(rng, noun)
    return draw_object(rng, noun, negated)


def draw_tense(rng: Random, verb: Verb) -> str:
    return "present" if verb.present_only else rng.choice(_TENSES)


def add_final_time(rng: Random, clause: Complement, tense: str) -> Complement:
    """A time adverb at the end."""
    english, french = rng.choice(TIMES.get(tense, TIMES["future"]))
    return Complement(f"{clause.en} {english}", (*clause.fr, french))


def add_time(rng: Random, clause: Complement, tense: str, chance: float = 0.25) -> Complement:
    """Sometimes a time adverb, mostly at the end, sometimes in front."""
    if rng.random() > chance:
        return clause
    if rng.random() < 0.2:
        english, french = rng.choice(TIMES.get(tense, TIMES["future"]))
        return Complement(f"{english}, {clause.en}", (french, ",", *clause.fr))
    return add_final_time(rng, clause, tense)


def draw_place(rng: Random, places: tuple = PLACES, avoid: str = "") -> tuple[Complement, Phrase]:
    """A preposition with a place, and the place's phrase."""
    english, french, kinds = rng.choice(places)
    noun = draw_noun(rng, kinds)
    while noun.en == avoid:
        noun = draw_noun(rng, kinds)
    phrase = draw_definite(rng, noun)
    return Complement(f" {english} {phrase.en}", (*french, *phrase.fr)), phrase
