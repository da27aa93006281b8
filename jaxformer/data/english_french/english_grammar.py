"""English inflection for the built-in corpus: plurals, articles, verb forms, do-support."""

from __future__ import annotations

VOWELS = "aeiou"
BE_PRESENT = {"1s": "am", "3s": "is", "1p": "are", "2p": "are", "3p": "are"}
BE_PAST = {"1s": "was", "3s": "was", "1p": "were", "2p": "were", "3p": "were"}
DO_PRESENT = {"1s": "do", "3s": "does", "1p": "do", "2p": "do", "3p": "do"}


def _add_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do"):
        return word + "es"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def plural(noun: str) -> str:
    """Regular plural: dog -> dogs, box -> boxes, story -> stories."""
    return _add_s(noun)


def third_person(verb: str) -> str:
    """Third person singular present; a particle stays: wait for -> waits for."""
    head, space, particle = verb.partition(" ")
    return ("has" if head == "have" else _add_s(head)) + space + particle


def past(verb: str) -> str:
    """Regular past: open -> opened, close -> closed, carry -> carried, look for -> looked for."""
    head, space, particle = verb.partition(" ")
    if head.endswith("e"):
        head += "d"
    elif head.endswith("y") and head[-2] not in VOWELS:
        head = head[:-1] + "ied"
    else:
        head += "ed"
    return head + space + particle


def present(verb: str, person: str) -> str:
    """Present tense of `verb` in `person` (1s, 3s, 1p, 2p, 3p)."""
    return third_person(verb) if person == "3s" else verb


def article(next_word: str) -> str:
    """The indefinite article: a dog, an old dog."""
    return "an" if next_word[0] in VOWELS else "a"


def be(person: str, *, past: bool = False, negated: bool = False) -> str:
    """A form of "be"; negated: isn't, weren't, and "am not" for the first person present.

    Args:
      person: 1s, 3s, 1p, 2p or 3p.
      past: past tense instead of present.
      negated: whether to negate.

    Returns:
      The form, such as "isn't".
    """
    form = (BE_PAST if past else BE_PRESENT)[person]
    if not negated:
        return form
    return "am not" if form == "am" else form + "n't"


def do(person: str, *, past: bool = False, negated: bool = False) -> str:
    """The auxiliary of questions and negations: do, doesn't, did, didn't.

    Args:
      person: 1s, 3s, 1p, 2p or 3p.
      past: past tense instead of present.
      negated: whether to negate.

    Returns:
      The form, such as "doesn't".
    """
    return ("did" if past else DO_PRESENT[person]) + ("n't" if negated else "")


def sentence(text: str) -> str:
    """Capitalise the first letter."""
    return text[0].upper() + text[1:]
