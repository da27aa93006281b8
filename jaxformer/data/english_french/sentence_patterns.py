"""Statements of the built-in corpus: each function draws one sentence in both languages."""

from __future__ import annotations

from random import Random

from jaxformer.data.english_french import clauses, english_grammar, french_grammar
from jaxformer.data.english_french.clauses import Complement
from jaxformer.data.english_french.lexicon import NOUNS_OF_KIND
from jaxformer.data.english_french.noun_phrases import (
    PRONOUNS,
    Phrase,
    draw_definite,
    draw_name,
    draw_noun,
    draw_object,
    draw_subject,
    noun_phrase,
    predicates_of,
)
from jaxformer.data.english_french.sentence import (
    Sentence,
    add_time,
    draw_degree,
    draw_place,
    draw_predicate,
    draw_tense,
    draw_verb_object,
    finish,
    object_of,
    said_of,
)
from jaxformer.data.english_french.verb_lexicon import (
    INTRANSITIVE,
    LEAVE,
    MOTION,
    PLACES,
    PLACES_FOR_THINGS,
    PROFESSIONS,
    TASTES,
    TRANSITIVE,
    TRANSITIVE_VERB,
    Verb,
)

THINGS = ("vehicle", "document", "container", "clothing", "object", "food")
OBJECT_PRONOUNS = (
    ("him", "le", "m", False),
    ("her", "la", "f", False),
    ("them", "les", "m", True),
    ("me", "me", "m", False),
    ("us", "nous", "m", True),
    ("you", "vous", "m", False),
)
_OWNERS = tuple(noun for noun in NOUNS_OF_KIND["person"] if not noun.is_relative)
_REFLEXIVE = {("I", "me"), ("I", "us"), ("we", "me"), ("we", "us"), ("you", "you")}
_PRONOUN_VERBS = tuple(
    verb for verb in TRANSITIVE if "person" in verb.objects and verb.auxiliary == "avoir"
)


def transitive(rng: Random) -> Sentence:
    """The boy didn't buy any red hats yesterday."""
    verb = rng.choice(TRANSITIVE)
    subject = draw_subject(rng, verb.subjects)
    tense, negated = draw_tense(rng, verb), rng.random() < 0.3
    target = draw_verb_object(rng, verb, negated, subject)
    clause = clauses.statement(subject, verb, tense, negated, object_of(target, verb))
    if not verb.present_only:
        clause = add_time(rng, clause, tense)
    return finish(clause, ".", subject, target)


def taste(rng: Random) -> Sentence:
    """She likes cold milk: French names the whole kind with the definite article."""
    verb = rng.choice(TASTES)
    subject = draw_subject(rng, ("person",), definite=True)
    noun = draw_noun(rng, verb.objects)
    choices = predicates_of(noun.kind)
    adjectives = (rng.choice(choices),) if rng.random() < 0.45 else ()
    kind = noun_phrase("the", noun, not noun.is_mass, adjectives)
    target = Complement(kind.en.removeprefix("the"), kind.fr)
    clause = clauses.statement(subject, verb, "present", rng.random() < 0.35, target)
    return finish(clause, ".", subject, kind)


def intransitive(rng: Random) -> Sentence:
    """The cat is going to sleep behind the armchair tonight."""
    verb = rng.choice((*INTRANSITIVE, LEAVE))
    subject = draw_subject(rng, verb.subjects)
    tense, negated = draw_tense(rng, verb), rng.random() < 0.25
    place, phrase = (
        (Complement(), subject) if verb is LEAVE or rng.random() < 0.2 else draw_place(rng)
    )
    clause = clauses.statement(subject, verb, tense, negated, place)
    phrases = (subject,) if phrase is subject else (subject, phrase)
    return finish(add_time(rng, clause, tense, 0.4), ".", *phrases)


def motion(rng: Random) -> Sentence:
    """My sister went to the old market: être in the past, au and du."""
    verb, english, french, kinds = rng.choice(MOTION)
    subject = draw_subject(rng, verb.subjects)
    tense, negated = draw_tense(rng, verb), rng.random() < 0.25
    place = draw_definite(rng, draw_noun(rng, kinds))
    complement = Complement(f" {english} {place.en}", (french, *place.fr))
    clause = clauses.statement(subject, verb, tense, negated, complement)
    return finish(add_time(rng, clause, tense), ".", subject, place)


def description(rng: Random) -> Sentence:
    """These churches weren't very big."""
    if rng.random() < 0.25:
        subject = draw_subject(rng, ("person", "animal"), definite=True)
    else:
        kinds = (
            "animal",
            "vehicle",
            "way",
            "water",
            "land",
            "barrier",
            "building",
            "room",
            "furniture",
            "drink",
            "staple",
            *THINGS,
        )
        subject = draw_definite(rng, draw_noun(rng, kinds))
    adjective = draw_predicate(rng, subject)
    rest = clauses.adjective_complement(subject, adjective, draw_degree(rng, adjective))
    clause = clauses.copula(subject, rng.random() < 0.4, rng.random() < 0.25, rest)
    return finish(clause, ".", subject, said=said_of(subject, adjective))


def location(rng: Random) -> Sentence:
    """The keys aren't on the small table."""
    subject = draw_definite(rng, draw_noun(rng, THINGS))
    places = PLACES if subject.kind == "vehicle" else PLACES_FOR_THINGS
    place, phrase = draw_place(rng, places, avoid=subject.noun)
    clause = clauses.copula(subject, rng.random() < 0.3, rng.random() < 0.25, place)
    return finish(clause, ".", subject, phrase)


def existence(rng: Random) -> Sentence:
    """There isn't a bird near the lake."""
    negated = rng.random() < 0.3
    kinds = ("animal", "animal", *THINGS)
    subject = draw_object(rng, draw_noun(rng, kinds), negated)
    while subject.en.split()[0] not in ("a", "an", "some", "any", "two", "three", "four", "many"):
        subject = draw_object(rng, draw_noun(rng, kinds), negated)
    places = PLACES if subject.kind in ("animal", "vehicle") else PLACES_FOR_THINGS
    place, phrase = draw_place(rng, places, avoid=subject.noun)
    words = ("il", "ne", "y", "a", "pas") if negated else ("il", "y", "a")
    verb = english_grammar.be(subject.person, negated=negated)
    clause = Complement(f"there {verb} {subject.en}{place.en}", (*words, *subject.fr, *place.fr))
    return finish(clause, ".", subject, phrase)


def profession(rng: Random) -> Sentence:
    """She isn't a singer: no article in French."""
    subject = draw_subject(rng, ("person",), definite=True)
    while subject.noun in ("teacher", "doctor", "baker", "queen", "king"):
        subject = draw_subject(rng, ("person",), definite=True)
    en, masculine, feminine = rng.choice(PROFESSIONS)
    word = french_grammar.agree_forms(masculine, feminine, subject.gender, subject.is_plural)
    english = (
        english_grammar.plural(en) if subject.is_plural else (f"{english_grammar.article(en)} {en}")
    )
    rest = Complement(f" {english}", (word,))
    negated = rng.random() < 0.3
    if rng.random() < 0.35:
        clause = clauses.statement(subject, _BE, rng.choice(("want", "future")), negated, rest)
    else:
        clause = clauses.copula(subject, rng.random() < 0.3, negated, rest)
    return finish(clause, ".", subject)


_BE = Verb("be", "être", ("person",), (), "was", "avoir", "", False, False)


def object_pronoun(rng: Random) -> Sentence:
    """Paul didn't see her: la, l' and the agreement of the participle."""
    verb = rng.choice(_PRONOUN_VERBS)
    subject = draw_subject(rng, verb.subjects)
    pronoun = rng.choice(OBJECT_PRONOUNS)
    while (subject.en, pronoun[0]) in _REFLEXIVE:
        pronoun = rng.choice(OBJECT_PRONOUNS)
    tense = rng.choice(("present", "past", "past", "future", "can", "want"))
    clause = clauses.with_object_pronoun(subject, verb, tense, rng.random() < 0.3, pronoun)
    return finish(add_time(rng, clause, tense), ".", subject)


def possessor(rng: Random) -> Sentence:
    """Julie's new car is fast, the door of possession: de, du, des, d'."""
    owner = draw_name(rng)
    if rng.random() < 0.5:
        owner = noun_phrase("the", rng.choice(_OWNERS), False)
    noun = draw_noun(rng, ("animal", "vehicle", "clothing", "object", "document", "building"))
    thing = noun_phrase("the", noun, rng.random() < 0.25)
    thing = Phrase(
        en=f"{owner.en}'s {thing.en.removeprefix('the ')}",
        fr=(*thing.fr, "de", *owner.fr),
        person=thing.person,
        gender=thing.gender,
        is_plural=thing.is_plural,
        pronoun=thing.pronoun,
        kind=thing.kind,
        noun=thing.noun,
    )
    if rng.random() < 0.5:
        adjective = draw_predicate(rng, thing)
        rest = clauses.adjective_complement(thing, adjective, draw_degree(rng, adjective))
        clause = clauses.copula(thing, rng.random() < 0.4, rng.random() < 0.2, rest)
        return finish(clause, ".", said=said_of(thing, adjective))
    verb = TRANSITIVE_VERB[rng.choice(("see", "find", "look for", "choose"))]
    if noun.kind not in verb.objects:
        verb = TRANSITIVE_VERB["see"]
    subject = rng.choice(PRONOUNS)
    tense = draw_tense(rng, verb)
    clause = clauses.statement(subject, verb, tense, rng.random() < 0.25, object_of(thing, verb))
    return finish(clause, ".")


def comparison(rng: Random) -> Sentence:
    """The bus is as slow as the tractor."""
    kind = rng.choice(("person", "animal", "vehicle", "building", "food", "document", "way"))
    first = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    second = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    while second.noun == first.noun:
        second = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    adjective = draw_predicate(rng, first)
    rest = clauses.adjective_complement(first, adjective, ("as", "aussi"))
    rest = Complement(f"{rest.en} as {second.en}", (*rest.fr, "que", *second.fr))
    clause = clauses.copula(first, rng.random() < 0.3, rng.random() < 0.25, rest)
    said = said_of(first, adjective) + said_of(second, adjective)
    return finish(clause, ".", said=said)


def coordination(rng: Random) -> Sentence:
    """The cow and the dog are tired: masculine unless all are feminine."""
    kind = rng.choice(("person", "animal", "vehicle", "furniture", "food", "clothing", "object"))
    first = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    second = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    while second.noun == first.noun:
        second = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    adjective = draw_predicate(rng, first)
    both = Phrase(
        en=f"{first.en} and {second.en}",
        fr=(*first.fr, "et", *second.fr),
        person="3p",
        gender="f" if first.gender == second.gender == "f" else "m",
        is_plural=True,
        pronoun="",
        kind=kind,
    )
    rest = clauses.adjective_complement(both, adjective, draw_degree(rng, adjective))
    clause = clauses.copula(both, rng.random() < 0.4, rng.random() < 0.2, rest)
    said = said_of(first, adjective) + said_of(second, adjective)
    return finish(clause, ".", said=said)
