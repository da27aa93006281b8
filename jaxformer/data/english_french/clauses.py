"""Clauses in both languages: tense, negation, questions, the copula, object pronouns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxformer.data.english_french import english_grammar, french_grammar, french_verbs
from jaxformer.data.english_french.lexicon import Adjective
from jaxformer.data.english_french.noun_phrases import Phrase
from jaxformer.data.english_french.verb_lexicon import MODALS, Verb

TENSES = ("present", "past", *MODALS)


@dataclass(frozen=True)
class Complement:
    """What follows the verb: English text (with its leading space) and French words."""

    en: str = ""
    fr: tuple[str, ...] = ()


def _english_verb(subject: Phrase, verb: Verb, tense: str, negated: bool) -> str:
    person = subject.person
    if tense == "present" and not negated:
        return english_grammar.present(verb.en, person)
    if tense == "past" and not negated:
        return verb.past
    if tense in ("present", "past"):
        return f"{english_grammar.do(person, past=tense == 'past', negated=True)} {verb.en}"
    if tense == "future":
        return f"{english_grammar.be(person, negated=negated)} going to {verb.en}"
    if tense == "want":
        want = english_grammar.present("want", person)
        if negated:
            want = f"{english_grammar.do(person, negated=True)} want"
        return f"{want} to {verb.en}"
    modal = tense if not negated else {"can": "can't", "must": "must not"}[tense]
    return f"{modal} {verb.en}"


def _french_verb(subject: Phrase, verb: Verb, tense: str) -> tuple[str, tuple[str, ...]]:
    """The finite verb and what comes after pas: a participle or an infinitive."""
    if tense == "present":
        return french_verbs.present(verb.fr, subject.person), ()
    if tense == "past":
        finite, participle = french_grammar.compound_past(
            verb.fr, verb.auxiliary, subject.person, subject.gender, subject.is_plural
        )
        return finite, (participle,)
    return french_verbs.present(MODALS[tense], subject.person), (verb.fr,)


def predicate(
    subject: Phrase, verb: Verb, tense: str, negated: bool, complement: Complement
) -> Complement:
    """Verb phrase of a statement, without its subject.

    Args:
      subject: the subject, which the verb agrees with.
      verb: the verb.
      tense: one of `TENSES`.
      negated: whether to negate.
      complement: what follows the verb.

    Returns:
      The verb phrase in both languages.
    """
    english = _english_verb(subject, verb, tense, negated) + complement.en
    finite, rest = _french_verb(subject, verb, tense)
    words = [finite, *rest]
    if negated:
        words = french_grammar.negate([finite], rest)
    return Complement(english, (*words, *complement.fr))


def statement(
    subject: Phrase, verb: Verb, tense: str, negated: bool, complement: Complement
) -> Complement:
    """Subject and verb phrase: "the dog doesn't eat" -> le chien ne mange pas.

    Args:
      subject: the subject.
      verb: the verb.
      tense: one of `TENSES`.
      negated: whether to negate.
      complement: what follows the verb.

    Returns:
      The clause in both languages, not capitalised and without a final mark.
    """
    rest = predicate(subject, verb, tense, negated, complement)
    return Complement(f"{subject.en} {rest.en}", (*subject.fr, *rest.fr))


def with_object_pronoun(
    subject: Phrase, verb: Verb, tense: str, negated: bool, pronoun: tuple[str, str, str, bool]
) -> Complement:
    """A statement with a pronoun object: il la voit, je l'ai vue, nous ne voulons pas les voir.

    Args:
      subject: the subject.
      verb: a transitive verb without preposition, conjugated with avoir.
      tense: one of `TENSES`.
      negated: whether to negate.
      pronoun: English, French, gender and number; a participle after it agrees with it.
    """
    english, clitic, gender, is_plural = pronoun
    finite, rest = _french_verb(subject, verb, tense)
    if tense == "present":
        core, rest = [clitic, finite], ()
    elif tense == "past":
        core = [clitic, finite]
        rest = (french_grammar.agree_participle(rest[0], gender, is_plural),)
    else:
        core, rest = [finite], (clitic, *rest)
    words = french_grammar.negate(core, rest) if negated else [*core, *rest]
    verb_phrase = _english_verb(subject, verb, tense, negated)
    return Complement(f"{subject.en} {verb_phrase} {english}", (*subject.fr, *words))


def copula(subject: Phrase, past: bool, negated: bool, rest: Complement) -> Complement:
    """Subject, "is" or "was", and what follows.

    Args:
      subject: the subject.
      past: "was" instead of "is"; imparfait in French.
      negated: whether to negate.
      rest: what follows the verb.

    Returns:
      The clause in both languages.
    """
    finite = (
        french_verbs.imperfect_of_be(subject.person)
        if past
        else french_verbs.present("être", subject.person)
    )
    words = french_grammar.negate([finite], rest.fr) if negated else [finite, *rest.fr]
    verb = english_grammar.be(subject.person, past=past, negated=negated)
    return Complement(f"{subject.en} {verb}{rest.en}", (*subject.fr, *words))


def adjective_complement(
    subject: Phrase, adjective: Adjective, degree: tuple[str, str] = ("", "")
) -> Complement:
    """A predicate adjective agreeing with `subject`, after too, very or nothing.

    Args:
      subject: decides gender and number in French.
      adjective: the adjective.
      degree: English and French adverb before it; empty strings for none.

    Returns:
      The adjective in both languages, to follow a copula.
    """
    form = french_grammar.agree_adjective(adjective, subject.gender, subject.is_plural)
    english, french = degree
    if english:
        return Complement(f" {english} {adjective.en}", (french, form))
    return Complement(f" {adjective.en}", (form,))


def yes_no_question(subject: Phrase, verb: Verb, tense: str, complement: Complement) -> Complement:
    """ "Do you eat ...?" -> est-ce que vous mangez ... ?

    Args:
      subject: the subject.
      verb: the verb.
      tense: one of `TENSES`.
      complement: what follows the verb.

    Returns:
      The question in both languages, without its mark.
    """
    finite, rest = _french_verb(subject, verb, tense)
    words = ("est-ce", "que", *subject.fr, finite, *rest, *complement.fr)
    if tense == "can":
        english = f"can {subject.en} {verb.en}"
    elif tense == "future":
        english = f"{english_grammar.be(subject.person)} {subject.en} going to {verb.en}"
    else:
        english = (
            f"{english_grammar.do(subject.person, past=tense == 'past')} {subject.en} {verb.en}"
        )
    return Complement(english + complement.en, words)


def inverted_question(
    word: Complement,
    subject: Phrase,
    verb: Verb,
    tense: str,
    negated: bool,
    complement: Complement,
) -> Complement:
    """Wh- questions with inversion: pourquoi mange-t-il ..., pourquoi le chien a-t-il ...

    A noun subject stays before the verb and its pronoun is inverted (complex inversion).

    Args:
      word: the question word in both languages.
      subject: the subject, a noun or a pronoun.
      verb: the verb.
      tense: "present" or "past".
      negated: whether to negate.
      complement: what follows the verb.

    Returns:
      The question in both languages, without its mark.
    """
    finite, rest = _french_verb(subject, verb, tense)
    inverted = french_grammar.invert(finite, subject.pronoun)
    words: Sequence[str] = [inverted, *rest]
    if negated:
        words = french_grammar.negate([inverted], rest)
    noun = () if subject.is_pronoun else subject.fr
    auxiliary = english_grammar.do(subject.person, past=tense == "past", negated=negated)
    return Complement(
        f"{word.en} {auxiliary} {subject.en} {verb.en}{complement.en}",
        (*word.fr, *noun, *words, *complement.fr),
    )
