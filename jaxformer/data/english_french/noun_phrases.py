"""Noun phrases drawn at random, in both languages at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from jaxformer.data.english_french import english_grammar, french_grammar
from jaxformer.data.english_french.lexicon import NOUNS_OF_KIND, Adjective, Noun, adjectives_for
from jaxformer.data.english_french.verb_lexicon import NAMES

Combination = tuple[str, str]  # a noun and an adjective said of it, both English


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun: English text, French words, what agreement needs.

    `person` is one of 1s, 3s, 1p, 2p, 3p; `pronoun` is the French subject pronoun for it;
    `combinations` are its (noun, adjective) pairs.
    """

    en: str
    fr: tuple[str, ...]
    person: str
    gender: str
    is_plural: bool
    pronoun: str
    is_pronoun: bool = False
    kind: str = ""
    noun: str = ""
    combinations: tuple[Combination, ...] = ()


def _pronoun(en: str, fr: str, person: str, gender: str = "m", is_plural: bool = False) -> Phrase:
    return Phrase(en, (fr,), person, gender, is_plural, fr, is_pronoun=True, kind="person")


# "I" and "you" are one man each, and "you" is polite, so that every sentence has one translation.
PRONOUNS = (
    _pronoun("I", "je", "1s"),
    _pronoun("you", "vous", "2p"),
    _pronoun("he", "il", "3s"),
    _pronoun("she", "elle", "3s", "f"),
    _pronoun("we", "nous", "1p", "m", True),
    _pronoun("they", "ils", "3p", "m", True),
)
POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_DEFINITE = ("the",) * 12 + ("this",) * 3 + POSSESSIVES
_SUBJECT = _DEFINITE + ("a",) * 2 + ("two", "three", "four")
_OBJECT = _DEFINITE + ("a",) * 6 + ("some",) * 2 + ("two", "three", "four", "many")
_NEGATED_OBJECT = _DEFINITE + ("a",) * 5 + ("any",) * 3
_MASS_OBJECT = ("the",) * 4 + ("this", "my", "our") + ("",) * 5
_PLURAL_ONLY = frozenset(("some", "any", "two", "three", "four", "many"))

adjectives_of = cache(adjectives_for)


@cache
def _preposed(kind: str) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in adjectives_of(kind) if adjective.preposed)


@cache
def _postposed(kind: str) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in adjectives_of(kind) if not adjective.preposed)


@cache
def predicates_of(kind: str) -> tuple[Adjective, ...]:
    """Adjectives that can follow "is" for nouns of `kind`."""
    return tuple(adjective for adjective in adjectives_of(kind) if adjective.predicative)


def draw_noun(rng: Random, kinds: Sequence[str]) -> Noun:
    """A noun of one of `kinds`; a kind named twice is twice as likely."""
    return rng.choice(NOUNS_OF_KIND[rng.choice(kinds)])


def noun_phrase(
    name: str, noun: Noun, is_plural: bool, adjectives: Sequence[Adjective] = ()
) -> Phrase:
    """The phrase of an English determiner, adjectives and a noun.

    Args:
      name: English determiner; "" for none, before food and drink, which French makes partitive.
      noun: the noun.
      is_plural: number.
      adjectives: at most one preposed and one postposed, in this order.
    """
    words = [adjective.en for adjective in adjectives]
    words.append(noun.en_plural if is_plural else noun.en)
    if name == "a":
        words.insert(0, english_grammar.article(words[0]))
    elif name == "this" and is_plural:
        words.insert(0, "these")
    elif name:
        words.insert(0, name)
    french_name = {"": "partitive", "any": "negated"}.get(name, name)
    return Phrase(
        en=" ".join(words),
        fr=tuple(french_grammar.noun_phrase(french_name, noun, is_plural, adjectives)),
        person="3p" if is_plural else "3s",
        gender=noun.gender,
        is_plural=is_plural,
        pronoun=("elle" if noun.gender == "f" else "il") + ("s" if is_plural else ""),
        kind=noun.kind,
        noun=noun.en,
        combinations=tuple((noun.en, adjective.en) for adjective in adjectives),
    )


def draw_adjectives(rng: Random, noun: Noun, name: str) -> tuple[Adjective, ...]:
    """No adjective, one, or a preposed and a postposed one of different scales.

    Args:
      rng: source of the draws.
      noun: the noun to describe.
      name: English determiner of the phrase.

    Returns:
      The adjectives, in the order of `noun_phrase`.
    """
    chance = rng.random()
    if chance > 0.4:
        return ()
    if noun.is_mass and name == "":
        return (rng.choice(_postposed(noun.kind)),)
    preposed, postposed = _preposed(noun.kind), _postposed(noun.kind)
    if chance < 0.04 and preposed and postposed:
        first, second = rng.choice(preposed), rng.choice(postposed)
        return (first,) if first.scale == second.scale else (first, second)
    return (rng.choice(adjectives_of(noun.kind)),) if adjectives_of(noun.kind) else ()


def choose_determiner(rng: Random, noun: Noun, names: Sequence[str]) -> str:
    """One of `names`, but "my brother" for "the brother" and "the king" for "my king".

    Args:
      rng: source of the draws.
      noun: the noun to determine.
      names: English determiners; one named twice is twice as likely.

    Returns:
      An English determiner.
    """
    name = rng.choice(names)
    if noun.is_relative and name in ("the", "this"):
        return rng.choice(POSSESSIVES)
    if name in POSSESSIVES and not noun.is_owned:
        return "the"
    return name


def _draw(rng: Random, noun: Noun, names: Sequence[str], plain: bool = False) -> Phrase:
    name = choose_determiner(rng, noun, names)
    is_plural = not noun.is_mass and (name in _PLURAL_ONLY or (name != "a" and rng.random() < 0.3))
    return noun_phrase(name, noun, is_plural, () if plain else draw_adjectives(rng, noun, name))


def draw_definite(rng: Random, noun: Noun, plain: bool = False) -> Phrase:
    """A phrase with the, this or a possessive.

    Args:
      rng: source of the draws.
      noun: the noun.
      plain: draw no adjectives.

    Returns:
      The phrase.
    """
    return _draw(rng, noun, ("the", "this", "my") if noun.is_mass else _DEFINITE, plain)


def draw_object(rng: Random, noun: Noun, negated: bool = False) -> Phrase:
    """A direct object; negation turns an indefinite article into "de": pas de voiture, pas d'eau.

    Args:
      rng: source of the draws.
      noun: the noun.
      negated: whether the verb is negated.

    Returns:
      The phrase.
    """
    names = _MASS_OBJECT if noun.is_mass else _NEGATED_OBJECT if negated else _OBJECT
    phrase = _draw(rng, noun, names)
    return negated_indefinite(phrase) if negated else phrase


def negated_indefinite(phrase: Phrase) -> Phrase:
    """Replace the French indefinite or partitive article by "de"; other phrases stay."""
    if phrase.fr[0] in ("un", "une"):
        words = ("de", *phrase.fr[1:])
    elif phrase.fr[0] == "de" and phrase.fr[1] in ("le", "la"):
        words = ("de", *phrase.fr[2:])
    else:
        return phrase
    return Phrase(
        phrase.en,
        words,
        phrase.person,
        phrase.gender,
        phrase.is_plural,
        phrase.pronoun,
        kind=phrase.kind,
        noun=phrase.noun,
        combinations=phrase.combinations,
    )


def draw_name(rng: Random) -> Phrase:
    name, gender = rng.choice(NAMES)
    pronoun = "elle" if gender == "f" else "il"
    return Phrase(name, (name,), "3s", gender, False, pronoun, kind="person")


def draw_subject(rng: Random, kinds: Sequence[str], definite: bool = False) -> Phrase:
    """A subject of one of `kinds`; a person is often a pronoun or a name.

    Args:
      rng: source of the draws.
      kinds: kinds of nouns; one named twice is twice as likely.
      definite: give a noun a definite determiner.

    Returns:
      The phrase.
    """
    kind = rng.choice(kinds)
    if kind == "person":
        chance = rng.random()
        if chance < 0.5:
            return rng.choice(PRONOUNS)
        if chance < 0.65:
            return draw_name(rng)
    return _draw(rng, draw_noun(rng, (kind,)), _DEFINITE if definite else _SUBJECT)
