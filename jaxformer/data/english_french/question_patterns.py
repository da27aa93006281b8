"""Questions and orders of the built-in corpus.

One rule for each English form: yes-no questions take "est-ce que", wh- questions invert.
"""

from __future__ import annotations

from random import Random

from jaxformer.data.english_french import clauses, english_grammar, french_grammar, french_verbs
from jaxformer.data.english_french.clauses import Complement
from jaxformer.data.english_french.noun_phrases import (
    PRONOUNS,
    Phrase,
    draw_definite,
    draw_noun,
    draw_subject,
)
from jaxformer.data.english_french.sentence import (
    Sentence,
    add_final_time,
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
    PLACES_FOR_THINGS,
    TRANSITIVE,
    TRANSITIVE_VERB,
    Verb,
)

_WH_WORDS = (
    Complement("why", ("pourquoi",)),
    Complement("why", ("pourquoi",)),
    Complement("where", ("où",)),
    Complement("when", ("quand",)),
)
# Present forms with an inverted pronoun are many and rare: a few frequent verbs carry them.
_INVERTED_PRESENT = ("buy", "sell", "choose", "eat", "drink", "have", "see", "look for")
_WHAT_VERBS = tuple(
    verb for verb in TRANSITIVE if not verb.preposition and "person" not in verb.objects
)
_COUNTED_VERBS = tuple(TRANSITIVE_VERB[verb] for verb in ("see", "have", "buy", "sell", "choose"))
_ORDER_VERBS = tuple(
    TRANSITIVE_VERB[verb]
    for verb in (
        "open",
        "close",
        "wash",
        "repair",
        "take",
        "eat",
        "drink",
        "push",
        "cross",
        "follow",
        "help",
        "buy",
        "hide",
        "choose",
        "find",
        "watch",
        "visit",
    )
)


def _draw_asked(rng: Random, kinds: tuple[str, ...]) -> Phrase:
    """A subject other than "I": nobody asks "why do I eat?", nor "mangé-je ?" in French."""
    subject = draw_subject(rng, kinds, definite=True)
    while subject.en == "I":
        subject = draw_subject(rng, kinds, definite=True)
    return subject


def _draw_inverted_tense(rng: Random, verb: Verb) -> str:
    if verb.present_only:
        return "present"
    return rng.choice(("present", "past")) if verb.en in _INVERTED_PRESENT else "past"


def yes_no(rng: Random) -> Sentence:
    """Did the girl find the black hamster?"""
    if rng.random() < 0.25:
        verb = rng.choice((*INTRANSITIVE, LEAVE))
        subject = _draw_asked(rng, verb.subjects)
        complement, *phrases = (Complement(),) if verb is LEAVE else draw_place(rng)
    else:
        verb = rng.choice(TRANSITIVE)
        subject = _draw_asked(rng, verb.subjects)
        phrases = (draw_verb_object(rng, verb, False, subject),)
        complement = object_of(phrases[0], verb)
    tense = "present" if verb.present_only else rng.choice(("present", "past", "can", "future"))
    clause = clauses.yes_no_question(subject, verb, tense, complement)
    return finish(clause, "?", subject, *phrases)


def yes_no_description(rng: Random) -> Sentence:
    """Are the horses very tired?"""
    kinds = (
        "person",
        "animal",
        "vehicle",
        "building",
        "food",
        "document",
        "clothing",
        "way",
        "water",
        "barrier",
        "room",
    )
    subject = _draw_asked(rng, (rng.choice(kinds),))
    adjective = draw_predicate(rng, subject)
    past, degree = rng.random() < 0.35, draw_degree(rng, adjective)
    rest = clauses.adjective_complement(subject, adjective, degree)
    statement = clauses.copula(subject, past, False, rest)
    verb = english_grammar.be(subject.person, past=past)
    clause = Complement(f"{verb} {subject.en}{rest.en}", ("est-ce", "que", *statement.fr))
    return finish(clause, "?", subject, said=said_of(subject, adjective))


def reason_place_or_time(rng: Random) -> Sentence:
    """Why didn't the cat eat the salty soup?"""
    word = rng.choice(_WH_WORDS)
    negated = word.en == "why" and rng.random() < 0.35
    if rng.random() < 0.35:
        verb = rng.choice((*INTRANSITIVE, LEAVE))
        subject, tense = _draw_asked(rng, verb.subjects), rng.choice(("present", "past"))
        clause = clauses.inverted_question(word, subject, verb, tense, negated, Complement())
        if word.en == "where":
            clause = add_final_time(rng, clause, tense)
        return finish(clause, "?", subject)
    verb = rng.choice(TRANSITIVE)
    while verb.present_only:
        verb = rng.choice(TRANSITIVE)
    subject = _draw_asked(rng, verb.subjects)
    target = draw_verb_object(rng, verb, negated, subject)
    complement, tense = object_of(target, verb), _draw_inverted_tense(rng, verb)
    clause = clauses.inverted_question(word, subject, verb, tense, negated, complement)
    return finish(clause, "?", subject, target)


def what(rng: Random) -> Sentence:
    """What did she buy yesterday?"""
    verb = rng.choice(_WHAT_VERBS)
    subject = rng.choice(PRONOUNS[1:])
    tense = _draw_inverted_tense(rng, verb)
    word = Complement("what", ("que",))
    complement, place = draw_place(rng)
    clause = clauses.inverted_question(word, subject, verb, tense, False, complement)
    return finish(clause, "?", place)


def who(rng: Random) -> Sentence:
    """Who broke the blue plate?"""
    verb = rng.choice(TRANSITIVE)
    target = draw_verb_object(rng, verb, False)
    subject = Phrase("who", ("qui",), "3s", "m", False, "il", is_pronoun=True)
    tense = draw_tense(rng, verb)
    clause = clauses.statement(subject, verb, tense, False, object_of(target, verb))
    return finish(clause, "?", target)


def where_is(rng: Random) -> Sentence:
    """Where is my old umbrella?"""
    kinds = ("vehicle", "container", "clothing", "object", "document", "building", "animal", "food")
    subject = draw_definite(rng, draw_noun(rng, kinds))
    verb = french_verbs.present("être", subject.person)
    clause = Complement(
        f"where {english_grammar.be(subject.person)} {subject.en}", ("où", verb, *subject.fr)
    )
    return finish(clause, "?", subject)


def how_many(rng: Random) -> Sentence:
    """How many horses does the baker have?"""
    verb = rng.choice(_COUNTED_VERBS)
    subject = _draw_asked(rng, ("person",))
    noun = draw_noun(rng, verb.objects)
    while noun.is_mass or noun.kind == "person":
        noun = draw_noun(rng, verb.objects)
    word = Complement(f"how many {noun.en_plural}", ("combien", "de", noun.fr_plural))
    clause = clauses.inverted_question(word, subject, verb, "present", False, Complement())
    return finish(clause, "?", subject)


def order(rng: Random) -> Sentence:
    """Don't open the red box! Please close the door."""
    verb = rng.choice(_ORDER_VERBS)
    negated = rng.random() < 0.35
    target = draw_definite(rng, draw_noun(rng, verb.objects))
    finite = french_verbs.present(verb.fr, "2p")
    words = french_grammar.negate([finite], target.fr) if negated else [finite, *target.fr]
    english = ("don't " if negated else "") + f"{verb.en} {target.en}"
    if rng.random() < 0.4:
        polite = Complement(f"please {english}", (*words, ",", "s'il vous plaît"))
        return finish(polite, ".", target)
    return finish(Complement(english, tuple(words)), "!", target)


def place_of_thing(rng: Random) -> Sentence:
    """Where are the apples? They are in the basket: the pronoun takes the noun's gender."""
    subject = draw_definite(
        rng, draw_noun(rng, ("container", "clothing", "object", "document", "food"))
    )
    place, phrase = draw_place(rng, PLACES_FOR_THINGS, avoid=subject.noun)
    verb = english_grammar.be(subject.person)
    finite = french_verbs.present("être", subject.person)
    pronoun = "they" if subject.is_plural else "it"
    question = french_grammar.sentence(("où", finite, *subject.fr), "?")
    answer = french_grammar.sentence((subject.pronoun, finite, *place.fr), ".")
    return Sentence(
        f"Where {verb} {subject.en}? {pronoun.capitalize()} {verb}{place.en}.",
        f"{question} {answer}",
        subject.combinations + phrase.combinations,
    )
