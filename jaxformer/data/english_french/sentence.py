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
    """One sentence pair.

    Attributes:
      en: English text.
      fr: French text.
      combinations: its (noun, adjective) pairs, in English.
      coreference: "subject verb object predicate" if the predicate decides the antecedent of a
        pronoun, else empty.
      nouns: then the subject and the object as they are written, (English, French) each.
    """

    en: str
    fr: str
    combinations: tuple[Combination, ...] = ()
    coreference: str = ""
    nouns: tuple[tuple[str, str], ...] = ()


def finish(clause: Complement, mark: str, *phrases: Phrase, said: tuple = ()) -> Sentence:
    """Join a clause into a sentence.

    Args:
      clause: the clause in both languages.
      mark: the final mark.
      *phrases: its phrases, whose combinations the sentence gets.
      said: further combinations, those of its predicates.

    Returns:
      The sentence pair.
    """
    combinations = tuple(said)
    for phrase in phrases:
        combinations += phrase.combinations
    return Sentence(
        english_grammar.sentence(clause.en) + mark,
        french_grammar.sentence(clause.fr, mark),
        combinations,
    )


def draw_predicate(rng: Random, subject: Phrase) -> Adjective:
    """An adjective for `subject` whose scale none of its own adjectives shares."""
    described = [word for _, word in subject.combinations]
    choices = predicates_of(subject.kind)
    scales = {adjective.scale for adjective in choices if adjective.en in described}
    return rng.choice([adjective for adjective in choices if adjective.scale not in scales])


def draw_degree(rng: Random, adjective: Adjective, degrees: tuple = DEGREES) -> tuple[str, str]:
    """Nothing, very or too; always nothing for adjectives without degrees (red, open).

    Args:
      rng: source of the draws.
      adjective: the adjective to modify.
      degrees: (English, French) adverbs to draw from.

    Returns:
      An (English, French) adverb, empty strings for none.
    """
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
    """An object for `verb`, with a noun other than the subject's.

    Args:
      rng: source of the draws.
      verb: a transitive verb.
      negated: whether the verb is negated.
      subject: the phrase whose noun is avoided; None: none is.

    Returns:
      The phrase.
    """
    noun = draw_noun(rng, verb.objects)
    while subject is not None and noun.en == subject.noun:
        noun = draw_noun(rng, verb.objects)
    if verb.definite or noun.kind == "person":
        return draw_definite(rng, noun)
    return draw_object(rng, noun, negated)


def draw_tense(rng: Random, verb: Verb) -> str:
    return "present" if verb.present_only else rng.choice(_TENSES)


def add_final_time(rng: Random, clause: Complement, tense: str) -> Complement:
    """Append a time adverb.

    Args:
      rng: source of the draws.
      clause: the clause in both languages.
      tense: one of `clauses.TENSES`, which the adverb fits.

    Returns:
      The clause with the adverb.
    """
    english, french = rng.choice(TIMES.get(tense, TIMES["future"]))
    return Complement(f"{clause.en} {english}", (*clause.fr, french))


def add_time(rng: Random, clause: Complement, tense: str, chance: float = 0.25) -> Complement:
    """Sometimes add a time adverb, mostly at the end.

    Args:
      rng: source of the draws.
      clause: the clause in both languages.
      tense: one of `clauses.TENSES`, which the adverb fits.
      chance: probability of an adverb.

    Returns:
      The clause, with an adverb or unchanged.
    """
    if rng.random() > chance:
        return clause
    if rng.random() < 0.2:
        english, french = rng.choice(TIMES.get(tense, TIMES["future"]))
        return Complement(f"{english}, {clause.en}", (french, ",", *clause.fr))
    return add_final_time(rng, clause, tense)


def draw_place(rng: Random, places: tuple = PLACES, avoid: str = "") -> tuple[Complement, Phrase]:
    """Draw a place with its preposition.

    Args:
      rng: source of the draws.
      places: (English preposition, French preposition, kinds of nouns) to draw from.
      avoid: an English noun that is not drawn.

    Returns:
      The complement, and the phrase of the place.
    """
    english, french, kinds = rng.choice(places)
    noun = draw_noun(rng, kinds)
    while noun.en == avoid:
        noun = draw_noun(rng, kinds)
    phrase = draw_definite(rng, noun)
    return Complement(f" {english} {phrase.en}", (*french, *phrase.fr)), phrase
