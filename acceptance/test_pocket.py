"""What the README promises of its main job; run after `python train.py` has ended."""

import json
from pathlib import Path

import pytest

from benchmarks.coreference_attention import measure
from jaxformer import Translator
from jaxformer.data.builtin_corpus import coreference_pairs, coreference_sentences

WORKDIR = Path("runs/pocket")


@pytest.fixture(scope="module")
def translator():
    return Translator.from_workdir(WORKDIR)


def held_out(split: str) -> dict:
    lines = [json.loads(line) for line in (WORKDIR / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split][-1]


def test_bleu_of_sentences_never_seen():
    assert held_out("test")["bleu"] >= 97.0


def test_bleu_of_combinations_never_seen():
    assert held_out("compositional")["bleu"] >= 90.0


@pytest.mark.parametrize(
    ("english", "french"),
    [
        (
            "The animal didn't cross the street because it was too tired.",
            "L'animal n'a pas traversé la rue parce qu'il était trop fatigué.",
        ),
        (
            "The animal didn't cross the street because it was too wide.",
            "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
        ),
        ("i am a student", "je suis étudiant"),
        ("thanks", "merci"),
        ("why do we work?", "pourquoi travaillons-nous ?"),
    ],
)
def test_well_known_sentences(translator, english, french):
    assert translator(english) == french


def test_pronouns_are_resolved(translator):
    pairs = coreference_pairs(100, seed=2026)
    translations = translator([english for english, _ in pairs])
    wrong = [
        f"{english} -> {translation} (expected {french})"
        for (english, french), translation in zip(pairs, translations, strict=True)
        if translation != french
    ]
    assert len(wrong) <= 5, "\n".join(wrong)


def test_a_head_looks_at_the_noun_of_a_pronoun(translator):
    best = measure(translator, coreference_sentences(200, seed=2026))[0]
    print(f"layer {best.layer}, head {best.head}, {best.kind}: {best.right:.1%}")
    assert best.right >= 0.8, best


def test_python_of_the_readme():
    text = Path("README.md").read_text("utf-8")
    block = text.split("```python\n")[1].split("```")[0]
    names = {}
    exec(block, names)
    assert names["translator"]("The cat is black.") == "Le chat est noir."
    assert names["translator"](["thanks", "why do we work?"]) == [
        "merci",
        "pourquoi travaillons-nous ?",
    ]
