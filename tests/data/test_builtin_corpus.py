"""The built-in corpus: golden sentences, splits, what is held out, determinism."""

import collections
import hashlib
import os
import re
import subprocess
import sys
from random import Random

import pytest
from builtin_corpus_golden import golden_sentences

from jaxformer.data import builtin_corpus
from jaxformer.data.builtin_corpus import (
    PATTERNS,
    SPLITS,
    TRY_OUT_SENTENCES,
    coreference_pairs,
    coreference_sentences,
    generate_corpus,
    is_held_out_combination,
)
from jaxformer.data.english_french import coreference_patterns
from jaxformer.data.english_french.everyday_phrases import EVERYDAY_PHRASES
from jaxformer.data.english_french.lexicon import ADJECTIVES, NOUN, NOUNS
from jaxformer.data.english_french.verb_lexicon import INTRANSITIVE, MOTION, TASTES, TRANSITIVE
from jaxformer.errors import InputError

TRY_OUT_FRENCH = (
    "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
    "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
)
DIGEST_PROGRAM = """
import hashlib
from jaxformer.data.builtin_corpus import generate_corpus
print(hashlib.sha256(repr(generate_corpus(500, 7)).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def corpus():
    return generate_corpus()


@pytest.fixture(scope="module")
def larger():
    return generate_corpus(100_000)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in PATTERNS])
def test_golden_sentences(pattern):
    rng = Random(f"golden {pattern.__name__}")
    drawn = [pattern(rng)[:2] for _ in range(3)]
    assert drawn == golden_sentences()[pattern.__name__]


@pytest.mark.parametrize(
    "english, french",
    [
        ("i am a student", "je suis étudiant"),
        ("thanks", "merci"),
        ("why do we work?", "pourquoi travaillons-nous ?"),
        ("hello", "bonjour"),
        ("good morning", "bonjour"),
        ("how are you?", "comment allez-vous ?"),
        ("go.", "va !"),
    ],
)
def test_everyday_phrases_are_repeated_in_training_only(corpus, english, french):
    assert corpus["train"].count((english, french)) == 15
    for split in SPLITS[1:]:
        assert (english, french) not in corpus[split]


def test_try_out_sentences_are_translated_but_never_given(corpus):
    found = {}
    for choice in coreference_patterns.all_choices():
        if choice.key in ("animal cross street tired", "animal cross street wide"):
            for seed in range(400):
                sentence = coreference_patterns.realize(Random(seed), choice)
                found[sentence.en] = sentence.fr
    assert tuple(found[english] for english in TRY_OUT_SENTENCES) == TRY_OUT_FRENCH
    given = {text for pairs in corpus.values() for pair in pairs for text in pair}
    given |= {text for pair in coreference_pairs(3_000, 0) for text in pair}
    assert given.isdisjoint(TRY_OUT_SENTENCES + TRY_OUT_FRENCH)
    assert not is_held_out_combination("animal", "tired")
    assert not is_held_out_combination("street", "wide")


def test_counts(corpus):
    assert list(corpus) == list(SPLITS)
    assert len(set(corpus["train"])) == 60_000
    assert len(corpus["train"]) == 60_000 + 14 * len(EVERYDAY_PHRASES)
    for split in SPLITS[1:]:
        assert len(set(corpus[split])) == len(corpus[split]) == 1_000


def test_a_hundred_thousand_distinct_pairs_and_the_same_held_out_splits(corpus, larger):
    assert len({english for english, _ in larger["train"]}) == 100_000
    for split in SPLITS[1:]:
        assert larger[split] == corpus[split]
    assert set(corpus["train"]) <= set(larger["train"])


def test_splits_are_disjoint_on_both_sides(corpus):
    for side in (0, 1):
        texts = {split: {pair[side] for pair in corpus[split]} for split in SPLITS}
        for first in SPLITS:
            for second in SPLITS:
                assert first == second or texts[first].isdisjoint(texts[second])


def test_each_english_sentence_has_one_translation(larger):
    translations = collections.defaultdict(set)
    for pairs in (*larger.values(), *generate_corpus(10_000, 1).values()):
        for english, french in pairs:
            translations[english].add(french)
    assert len(translations) > 105_000
    assert [english for english, found in translations.items() if len(found) > 1] == []


def test_same_corpus_in_another_process_with_another_hash_seed():
    digest = hashlib.sha256(repr(generate_corpus(500, 7)).encode()).hexdigest()
    output = subprocess.run(
        [sys.executable, "-c", DIGEST_PROGRAM],
        env={**os.environ, "PYTHONHASHSEED": "99"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout.strip() == digest
    assert generate_corpus(500, 8) != generate_corpus(500, 7)


ANY_ADJECTIVE = "|".join(adjective.en for adjective in ADJECTIVES)


def said_together(pairs):
    """Every (noun, adjective) that the English text shows side by side, or joined by "is"."""
    words = {word: noun.en for noun in NOUNS for word in (noun.en, noun.en_plural)}
    any_noun = "|".join(sorted(words, key=len, reverse=True))
    before = re.compile(rf"\b({ANY_ADJECTIVE}) (?:({ANY_ADJECTIVE}) )?({any_noun})\b")
    # At the start of the sentence the noun is the subject; inside it may belong to a relative.
    after = re.compile(
        rf"^\w+ (?:(?:{ANY_ADJECTIVE}) )*({any_noun}) (?:is|are|was|were)(?:n't)? "
        rf"(?:very |too |as )?({ANY_ADJECTIVE})\b"
    )
    found = set()
    for english, _ in pairs:
        for first, second, noun in before.findall(english):
            found |= {(words[noun], adjective) for adjective in (first, second) if adjective}
        for noun, adjective in after.findall(english):
            found.add((words[noun], adjective))
    return found


def test_held_out_combinations_never_meet_in_training(corpus):
    combinations = [
        (noun.en, adjective.en)
        for noun in NOUNS
        for adjective in ADJECTIVES
        if noun.kind in adjective.kinds
    ]
    held_out = {pair for pair in combinations if is_held_out_combination(*pair)}
    assert 0.06 < len(held_out) / len(combinations) < 0.10
    trained = said_together(corpus["train"])
    assert len(trained) > 0.9 * (len(combinations) - len(held_out))
    assert trained.isdisjoint(held_out)
    assert said_together(corpus["test"] + corpus["validation"]).isdisjoint(held_out)
    assert len(said_together(corpus["compositional"]) & held_out) > 0.8 * len(held_out)


def test_every_word_of_the_lexicon_is_frequent_in_training(corpus):
    counts = collections.Counter(
        word.lower() for english, _ in corpus["train"] for word in re.findall(r"[\w']+", english)
    )
    adjectives = [adjective.en for adjective in ADJECTIVES]
    nouns = [noun.en for noun in NOUNS]
    plurals = [noun.en_plural for noun in NOUNS if not noun.is_mass]
    verbs = [verb for verb in (*TRANSITIVE, *TASTES, *INTRANSITIVE, *(row[0] for row in MOTION))]
    stems = [verb.en.split()[0] for verb in verbs]
    pasts = [verb.past.split()[0] for verb in verbs if not verb.present_only]
    assert len(nouns) > 120 and len(adjectives) > 60 and len(verbs) > 35
    assert min(counts[word] for word in adjectives + nouns + stems) >= 80
    assert min(counts[word] for word in plurals + pasts) >= 60


def antecedent_and_pronoun(english, french):
    key = re.fullmatch(
        r"(?:The|This|These|My|Our|Her) (\S+) (?:didn't|doesn't|don't|can't) (\S+) "
        r"(?:the|this|these|my|our|her) (\S+) because (?:it|they) (?:was|is|were|are) "
        r"(?:too|very) (\S+)\.",
        english,
    ).groups()
    return key, re.search(r"qu'(elles?|ils?)", french).group(1).rstrip("s")


def test_coreference_pairs_are_fresh_balanced_and_need_resolution(corpus):
    singular = {noun.en_plural: noun.en for noun in NOUNS}
    pairs = coreference_pairs(400, 3)
    assert pairs == coreference_pairs(400, 3) != coreference_pairs(400, 4)
    known = set()
    for english, _ in corpus["train"]:
        if " because " in english:
            known.add(english)
    choices = {choice.key: choice for choice in coreference_patterns.all_choices()}
    differing = to_subject = 0
    for english, french in pairs:
        (subject, verb, target, predicate), pronoun = antecedent_and_pronoun(english, french)
        subject, target = singular.get(subject, subject), singular.get(target, target)
        choice = choices[f"{subject} {verb} {target} {predicate}"]
        assert coreference_patterns.is_held_out(choice.key) and english not in known
        antecedent = subject if choice.resolves_to_subject else target
        assert pronoun == ("elle" if NOUN[antecedent].gender == "f" else "il")
        differing += NOUN[subject].gender != NOUN[target].gender
        to_subject += choice.resolves_to_subject
    assert to_subject == 200
    assert differing == 360


@pytest.mark.parametrize("seed", [0, 5])
def test_held_out_pronoun_combinations_are_in_no_split(seed):
    rng = Random(seed)
    keys = [builtin_corpus._draw(rng).coreference for _ in range(10_000)]
    used = {key for key in keys if key}
    assert len(used) > 500
    assert not any(coreference_patterns.is_held_out(key) for key in used)


def test_a_predicate_fits_one_of_the_two_nouns_only():
    for frame in coreference_patterns.FRAMES:
        for predicate in frame.subject_predicates:
            assert frame.subject_kind in predicate.kinds
            assert frame.object_kind not in predicate.kinds
        for predicate in frame.object_predicates:
            assert frame.object_kind in predicate.kinds
            assert frame.subject_kind not in predicate.kinds


@pytest.mark.parametrize("num_pairs", [10, 10_000_000])
def test_impossible_sizes_are_refused(num_pairs):
    with pytest.raises(InputError, match=f"data.num_pairs={num_pairs} must be between .* 300000"):
        generate_corpus(num_pairs)


def test_too_many_pronoun_sentences_are_refused():
    with pytest.raises(InputError, match="count=10001 must be between 0 and 10000"):
        coreference_pairs(10_001, 0)


def test_french_spacing_and_apostrophes(corpus):
    for pairs in corpus.values():
        for english, french in pairs:
            assert "’" not in english + french and "  " not in english + french
            assert not re.search(r"[^ ][?!]", french)
            assert not re.search(r"\b(?:de les?\b|à les?\b|le [aeiouéêœ]|de [aeiouéêœ])", french)


def test_coreference_sentences_name_the_pronoun_and_both_nouns():
    sentences = coreference_sentences(300, 5)
    assert [sentence[:2] for sentence in sentences] == coreference_pairs(300, 5)
    nouns = {form: noun for noun in NOUNS for form in (noun.en, noun.en_plural)}
    french = {form: noun for noun in NOUNS for form in (noun.fr, noun.fr_plural)}
    for index, (english, french_text, *mentions) in enumerate(sentences):
        pronoun, referent, other = (
            (english[slice(*mention.en)], french_text[slice(*mention.fr)]) for mention in mentions
        )
        assert pronoun[0] in ("it", "they")
        for noun in (referent, other):
            assert noun[0] in nouns and noun[1] in french
        gender = nouns[referent[0]].gender
        assert pronoun[1] == ("elle" if gender == "f" else "il") + "s" * (pronoun[0] == "they")
        order = mentions[1].en < mentions[2].en, mentions[1].fr < mentions[2].fr
        assert order == (index % 2 == 0,) * 2  # they alternate between subject and object
        assert mentions[0].en[0] > max(mentions[1].en[1], mentions[2].en[1])
