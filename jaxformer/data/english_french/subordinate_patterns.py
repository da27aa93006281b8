"""Sentences of two clauses: opinions, relatives and pronouns with one possible antecedent."""

from __future__ import annotations

from random import Random

from jaxformer.data.english_french import clauses, english_grammar, french_verbs
from jaxformer.data.english_french.clauses import Complement
from jaxformer.data.english_french.lexicon import NOUN
from jaxformer.data.english_french.noun_phrases import (
    PRONOUNS,
    Phrase,
    draw_definite,
    draw_name,
    draw_noun,
    draw_object,
    draw_subject,
)
from jaxformer.data.english_french.sentence import (
    DEGREES,
    Sentence,
    draw_degree,
    draw_predicate,
    draw_verb_object,
    finish,
    object_of,
    said_of,
)
from jaxformer.data.english_french.verb_lexicon import (
    INTRANSITIVE,
    TASTES,
    TRANSITIVE,
    TRANSITIVE_VERB,
)

_OPINIONS = (("think", "penser"), ("know", "savoir"), ("say", "dire"))
_DESCRIBED = (
    "animal",
    "vehicle",
    "way",
    "water",
    "barrier",
    "document",
    "furniture",
    "clothing",
    "object",
    "food",
    "building",
)
# People whose gender the English pronoun tells.
_GENDERED = tuple(
    NOUN[word]
    for word in (
        "man",
        "woman",
        "boy",
        "girl",
        "brother",
        "sister",
        "mother",
        "father",
        "queen",
        "king",
    )
)
_RELATIVE_VERBS = tuple(verb for verb in TRANSITIVE if not verb.present_only)
_BOUGHT = tuple(TRANSITIVE_VERB[verb] for verb in ("buy", "choose", "find"))
_PASSED_ON = tuple(
    TRANSITIVE_VERB[verb] for verb in ("sell", "see", "find", "buy", "hide", "choose")
)


def opinion(rng: Random) -> Sentence:
    """He says that the river is deep: que elides."""
    thinker = draw_subject(rng, ("person",), definite=True)
    english, french = rng.choice(_OPINIONS)
    subject = draw_subject(rng, ("person", *_DESCRIBED), definite=True)
    said: tuple = ()
    if subject.kind in ("person", "animal") and rng.random() < 0.5:
        verb = rng.choice(INTRANSITIVE)
        tense = rng.choice(("present", "past", "future", "can", "want"))
        if subject.kind not in verb.subjects:
            verb = INTRANSITIVE[0]
        inner = clauses.statement(subject, verb, tense, rng.random() < 0.25, Complement())
    else:
        adjective = draw_predicate(rng, subject)
        said = said_of(subject, adjective)
        rest = clauses.adjective_complement(subject, adjective, draw_degree(rng, adjective))
        inner = clauses.copula(subject, rng.random() < 0.3, rng.random() < 0.25, rest)
    outer = english_grammar.present(english, thinker.person)
    finite = french_verbs.present(french, thinker.person)
    clause = Complement(
        f"{thinker.en} {outer} that {inner.en}", (*thinker.fr, finite, "que", *inner.fr)
    )
    return finish(clause, ".", thinker, subject, said=said)


def relative(rng: Random) -> Sentence:
    """The woman who sold the old house is sad."""
    verb = rng.choice(_RELATIVE_VERBS)
    kind = rng.choice(verb.subjects[:2])
    subject = draw_definite(rng, draw_noun(rng, (kind,)), plain=True)
    target = draw_verb_object(rng, verb, False, subject)
    inner = clauses.predicate(
        subject, verb, rng.choice(("present", "past")), False, object_of(target, verb)
    )
    adjective = draw_predicate(rng, subject)
    whole = Phrase(
        en=f"{subject.en} {'who' if kind == 'person' else 'that'} {inner.en}",
        fr=(*subject.fr, "qui", *inner.fr),
        person=subject.person,
        gender=subject.gender,
        is_plural=subject.is_plural,
        pronoun=subject.pronoun,
    )
    rest = clauses.adjective_complement(subject, adjective, draw_degree(rng, adjective))
    clause = clauses.copula(whole, False, False, rest)
    return finish(clause, ".", target, said=said_of(subject, adjective))


def _it(antecedent: Phrase) -> Phrase:
    """The pronoun for a thing: it or they in English, il, elle, ils or elles in French."""
    return Phrase(
        en="they" if antecedent.is_plural else "it",
        fr=(antecedent.pronoun,),
        person=antecedent.person,
        gender=antecedent.gender,
        is_plural=antecedent.is_plural,
        pronoun=antecedent.pronoun,
    )


def contrast(rng: Random) -> Sentence:
    """The car is old, but it isn't slow."""
    subject = draw_definite(rng, draw_noun(rng, _DESCRIBED), plain=True)
    first, second = draw_predicate(rng, subject), draw_predicate(rng, subject)
    while second.scale == first.scale:
        second = draw_predicate(rng, subject)
    past = rng.random() < 0.35
    rest = clauses.adjective_complement(subject, first, draw_degree(rng, first, DEGREES[1:3]))
    left = clauses.copula(subject, past, rng.random() < 0.2, rest)
    rest = clauses.adjective_complement(subject, second, draw_degree(rng, second, DEGREES[1:3]))
    right = clauses.copula(_it(subject), past, rng.random() < 0.3, rest)
    clause = Complement(f"{left.en}, but {right.en}", (*left.fr, ",", "mais", *right.fr))
    return finish(clause, ".", said=said_of(subject, first) + said_of(subject, second))


def cause(rng: Random) -> Sentence:
    """I like this story because it is funny, she bought the lamp because it was pretty."""
    likes = rng.random() < 0.4
    verb = rng.choice(TASTES if likes else _BOUGHT)
    subject = draw_subject(rng, ("person",), definite=True)
    kinds = [kind for kind in verb.objects if kind not in ("drink", "staple")]
    target = draw_definite(rng, draw_noun(rng, kinds))
    adjective = draw_predicate(rng, target)
    left = clauses.statement(
        subject, verb, "present" if likes else "past", rng.random() < 0.25, object_of(target, verb)
    )
    rest = clauses.adjective_complement(target, adjective, draw_degree(rng, adjective))
    right = clauses.copula(_it(target), not likes, False, rest)
    # "They" after people in the plural could be either; "it" never is a person.
    if subject.is_plural and target.is_plural:
        return cause(rng)
    clause = Complement(f"{left.en} because {right.en}", (*left.fr, "parce", "que", *right.fr))
    return finish(clause, ".", subject, target, said=said_of(target, adjective))


def transfer(rng: Random) -> Sentence:
    """I bought the lamps, but Paul lost them: the participle agrees with les."""
    first, second = rng.choice(_BOUGHT), rng.choice(_PASSED_ON)
    while first is second:
        second = rng.choice(_PASSED_ON)
    subject = draw_subject(rng, ("person",), definite=True)
    kinds = ("document", "clothing", "object", "container")
    kinds = [kind for kind in kinds if kind in first.objects and kind in second.objects]
    target = draw_object(rng, draw_noun(rng, kinds or ("object",)))
    other = draw_name(rng) if rng.random() < 0.4 else rng.choice(PRONOUNS)
    while other.en == subject.en:
        other = rng.choice(PRONOUNS)
    left = clauses.statement(subject, first, "past", False, object_of(target, first))
    clitic = "les" if target.is_plural else "la" if target.gender == "f" else "le"
    english = "them" if target.is_plural else "it"
    pronoun = (english, clitic, target.gender, target.is_plural)
    right = clauses.with_object_pronoun(other, second, "past", rng.random() < 0.3, pronoun)
    clause = Complement(f"{left.en}, but {right.en}", (*left.fr, ",", "mais", *right.fr))
    return finish(clause, ".", subject, target)


def person_or_thing(rng: Random) -> Sentence:
    """The girl didn't lift the box because she was too weak, ... because it was too heavy."""
    verb = TRANSITIVE_VERB[rng.choice(("cross", "climb", "lift", "push", "buy"))]
    subject = draw_definite(rng, rng.choice(_GENDERED), plain=True)
    target = draw_definite(rng, draw_noun(rng, verb.objects), plain=True)
    while (
        subject.is_plural == target.is_plural
        and subject.is_plural
        or target.kind in ("land", "drink", "staple")
    ):
        subject = draw_definite(rng, rng.choice(_GENDERED), plain=True)
        target = draw_definite(rng, draw_noun(rng, verb.objects), plain=True)
    past = rng.random() < 0.6
    left = clauses.statement(
        subject, verb, "past" if past else "present", True, object_of(target, verb)
    )
    if rng.random() < 0.5:
        antecedent = subject
        english = {"il": "he", "elle": "she"}.get(subject.pronoun, "they")
    else:
        antecedent, english = target, _it(target).en
    pronoun = Phrase(
        english,
        (antecedent.pronoun,),
        antecedent.person,
        antecedent.gender,
        antecedent.is_plural,
        antecedent.pronoun,
    )
    adjective = draw_predicate(rng, antecedent)
    rest = clauses.adjective_complement(
        pronoun, adjective, draw_degree(rng, adjective, DEGREES[2:])
    )
    right = clauses.copula(pronoun, past, False, rest)
    clause = Complement(f"{left.en} because {right.en}", (*left.fr, "parce", "que", *right.fr))
    return finish(clause, ".", said=said_of(antecedent, adjective))
