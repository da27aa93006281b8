"""French grammar as pure functions: agreement, elision, contraction, negation, question forms.

A French sentence is built as a list of full words ("de", "le", "animal"). Only `join_words`, which
joins them, elides and contracts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxformer.data.english_french import french_verbs

if TYPE_CHECKING:
    from jaxformer.data.english_french.lexicon import Adjective, Noun

# "y" elides the word before it; no other word of the corpus begins with that letter.
_VOWEL_LETTERS = "aàâeéèêëiîïoôœuùûyh"
# The h that forbids elision: le hibou, not l'hibou.
ASPIRATED = frozenset("hamster hamsters hibou hiboux haie haies haut haute hauts hautes".split())
_ELIDING = frozenset(("le", "la", "je", "ne", "me", "de", "que"))
_CONTRACTIONS = {
    ("de", "le"): "du",
    ("de", "les"): "des",
    ("à", "le"): "au",
    ("à", "les"): "aux",
}
# Masculine, feminine, plural.
_DETERMINERS = {
    "the": ("le", "la", "les"),
    "a": ("un", "une", "des"),
    "this": ("ce", "cette", "ces"),
    "my": ("mon", "ma", "mes"),
    "his": ("son", "sa", "ses"),
    "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"),
    "your": ("votre", "votre", "vos"),
    "their": ("leur", "leur", "leurs"),
}
_BEFORE_VOWEL = {"ce": "cet", "ma": "mon", "sa": "son"}
NUMERALS = {"two": "deux", "three": "trois", "four": "quatre"}


def begins_with_vowel_sound(word: str) -> bool:
    """Whether `le`, `je`, `ne`, `de` ... elide before `word`; h is mute unless in `ASPIRATED`."""
    lower = word.lower()
    return lower[0] in _VOWEL_LETTERS and lower not in ASPIRATED


def plural(word: str) -> str:
    """Plural of a noun or masculine adjective: -s, -x, -z stay, -al -> -aux, -eau -> -eaux."""
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith("al"):
        return word[:-2] + "aux"
    if word.endswith(("eau", "eu")) and word != "bleu":
        return word + "x"
    return word + "s"


def feminine(adjective: str) -> str:
    """Regular feminine: -e stays, -eux -> -euse, -er -> -ère, -on -> -onne, else add -e."""
    if adjective.endswith("e"):
        return adjective
    if adjective.endswith("eux"):
        return adjective[:-1] + "se"
    if adjective.endswith("er"):
        return adjective[:-2] + "ère"
    if adjective.endswith("on"):
        return adjective + "ne"
    return adjective + "e"


def agree_forms(masculine: str, feminine_form: str, gender: str, is_plural: bool) -> str:
    """Inflect a word for gender and number.

    Args:
      masculine: masculine singular.
      feminine_form: feminine singular.
      gender: "m" or "f".
      is_plural: whether the form is plural.

    Returns:
      The inflected form.
    """
    form = feminine_form if gender == "f" else masculine
    return plural(form) if is_plural else form


def agree_adjective(adjective: Adjective, gender: str, is_plural: bool) -> str:
    """Inflect an adjective that follows its noun or a copula.

    Args:
      adjective: the adjective.
      gender: "m" or "f".
      is_plural: whether the form is plural.

    Returns:
      The inflected form.
    """
    return agree_forms(adjective.fr, adjective.feminine, gender, is_plural)


def agree_participle(participle: str, gender: str, is_plural: bool) -> str:
    """Inflect a past participle: allé, allée, allés, allées.

    Args:
      participle: masculine singular.
      gender: "m" or "f".
      is_plural: whether the form is plural.

    Returns:
      The inflected form.
    """
    form = participle + ("e" if gender == "f" else "")
    return plural(form) if is_plural else form


def determiner(name: str, noun: Noun, is_plural: bool, next_word: str) -> list[str]:
    """The French words of an English determiner before `next_word`.

    Args:
      name: an English determiner, or "partitive" (de + article), "negated" (pas de) or "" (none).
      noun: the noun it belongs to.
      is_plural: number of the phrase.
      next_word: the word that follows, which decides cet, mon école and de petits chiens.
    """
    if name == "":
        return []
    if name in NUMERALS:
        return [NUMERALS[name]]
    if name == "many":
        return ["beaucoup", "de"]
    if name == "negated":
        return ["de"]
    if name == "some":
        # des chiens, but de petits chiens
        return ["des"] if next_word == noun.fr_plural else ["de"]
    if name == "partitive":
        return ["de", _DETERMINERS["the"][noun.gender == "f"]]
    masculine, feminine_form, plural_form = _DETERMINERS[name]
    if is_plural:
        return [plural_form]
    word = masculine if noun.gender == "m" else feminine_form
    return [_BEFORE_VOWEL.get(word, word) if begins_with_vowel_sound(next_word) else word]


def noun_phrase(
    name: str, noun: Noun, is_plural: bool, adjectives: Sequence[Adjective] = ()
) -> list[str]:
    """Determiner, preposed adjectives, noun and postposed adjectives, all agreeing.

    Args:
      name: a determiner, as for `determiner`.
      noun: the noun.
      is_plural: number of the phrase.
      adjectives: at most one preposed and one postposed, in this order.

    Returns:
      The words in full form, for `join_words`.
    """
    words = [noun.fr_plural if is_plural else noun.fr]
    for adjective in adjectives:
        form = agree_adjective(adjective, noun.gender, is_plural)
        if not adjective.preposed:
            words.append(form)
        elif noun.gender == "m" and not is_plural and begins_with_vowel_sound(words[0]):
            words.insert(0, adjective.before_vowel)
        else:
            words.insert(0, form)
    return determiner(name, noun, is_plural, words[0]) + words


def compound_past(
    infinitive: str, auxiliary: str, person: str, gender: str, is_plural: bool
) -> tuple[str, str]:
    """Auxiliary and participle of the passé composé; with être the participle agrees.

    Args:
      infinitive: the verb.
      auxiliary: "avoir" or "être".
      person: 1s, 3s, 1p, 2p or 3p.
      gender: "m" or "f", of the subject.
      is_plural: number of the subject.

    Returns:
      `(auxiliary, participle)`.
    """
    participle = french_verbs.past_participle(infinitive)
    if auxiliary == "être":
        participle = agree_participle(participle, gender, is_plural)
    return french_verbs.present(auxiliary, person), participle


def negate(finite: Sequence[str], rest: Sequence[str]) -> list[str]:
    """Put ne ... pas around the finite verb (and its clitics); `rest` follows pas."""
    return ["ne", *finite, "pas", *rest]


def invert(verb: str, pronoun: str) -> str:
    """Verb and subject pronoun of a question: mangez-vous, a-t-il, vend-elle."""
    link = "-t-" if pronoun in ("il", "elle") and verb[-1] not in "td" else "-"
    return verb + link + pronoun


def join_words(words: Sequence[str]) -> str:
    """Join full forms into text: elide (l'animal, n'a, qu'il, d'eau), contract (du, aux)."""
    text = ""
    pending = ""
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        elides = word in _ELIDING and following and begins_with_vowel_sound(following)
        if word in ("le", "les") and pending and not elides:
            text += _CONTRACTIONS.get((pending, word), f"{pending} {word}") + " "
            pending = ""
            continue
        if pending:
            text += pending + " "
            pending = ""
        if elides:
            text += word[:-1] + "'"
        elif word in ("de", "à"):
            pending = word
        else:
            text += word + " "
    return (text + pending).rstrip().replace(" ,", ",")


def sentence(words: Sequence[str], mark: str) -> str:
    """A whole sentence: capital letter, final `mark`, and a space before ? and !."""
    text = join_words(words)
    return text[0].upper() + text[1:] + (mark if mark == "." else " " + mark)
