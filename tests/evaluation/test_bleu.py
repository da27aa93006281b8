import dataclasses
import math

import pytest
from training_run import small_config

from jaxformer.errors import InputError
from jaxformer.evaluation.bleu import corpus_scores
from jaxformer.training.setup import prepare_run

REFERENCES = ["The dog bit the man.", "It was not unexpected.", "The man bit him first."]
HYPOTHESES = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]


def test_a_corpus_counted_by_hand():
    # 13a cuts off the full stops and leaves "wasn't" whole: 6 + 4 + 7 = 17 tokens, 6 + 5 + 6 = 17.
    # Matches: 1-grams 6 + 2 + 4, 2-grams 5 + 0 + 1, 3-grams 4, 4-grams 3.
    scores = corpus_scores(HYPOTHESES, REFERENCES)
    assert (scores.hypothesis_length, scores.reference_length) == (17, 17)
    expected = (100 * 12 / 17, 100 * 6 / 14, 100 * 4 / 11, 100 * 3 / 8)
    assert scores.precisions == pytest.approx(expected)
    assert scores.brevity_penalty == 1.0
    assert scores.bleu == pytest.approx(math.prod(expected) ** 0.25)
    assert scores.bleu == pytest.approx(45.067, abs=0.001)


def test_the_corpus_is_summed_and_not_averaged_over_sentences():
    whole = corpus_scores(HYPOTHESES, REFERENCES).bleu
    single = [corpus_scores([h], [r]).bleu for h, r in zip(HYPOTHESES, REFERENCES, strict=True)]
    assert whole != pytest.approx(sum(single) / 3, abs=1.0)


def test_a_perfect_translation_is_100():
    scores = corpus_scores(REFERENCES, REFERENCES)
    assert scores.bleu == pytest.approx(100.0)
    assert scores.chrf == pytest.approx(100.0)
    assert scores.precisions == (100.0, 100.0, 100.0, 100.0)


def test_brevity_is_punished_by_hand():
    # 4 tokens for 8: exp(1 - 8 / 4); all their n-grams match.
    scores = corpus_scores(["a b c d"], ["a b c d e f g h"], tokenize="none")
    assert (scores.hypothesis_length, scores.reference_length) == (4, 8)
    assert scores.brevity_penalty == pytest.approx(math.exp(-1))
    assert scores.bleu == pytest.approx(100 * math.exp(-1))


def test_nothing_in_common_is_zero():
    scores = corpus_scores(["xx yy zz ww"], ["a b c d"])
    assert scores.bleu == 0.0 and scores.chrf == 0.0
    assert corpus_scores([""], ["a b c d"]).bleu == 0.0


def test_chrf_by_hand():
    # One letter of two matches: precision 1/2 and recall 1/2 of 1-grams, 0 of the only 2-gram;
    # averaged over both orders 1/4, and F2 of equal precision and recall is their value.
    scores = corpus_scores(["ab"], ["ac"])
    assert scores.chrf == pytest.approx(25.0)


def test_lowercase_ignores_case_in_both_figures():
    shouted = [reference.upper() for reference in REFERENCES]
    cased = corpus_scores(shouted, REFERENCES)
    uncased = corpus_scores(shouted, REFERENCES, lowercase=True)
    assert cased.bleu < 20 and cased.chrf < 20
    assert uncased.bleu == pytest.approx(100.0) and uncased.chrf == pytest.approx(100.0)
    assert "case:mixed" in cased.bleu_signature and "case:mixed" in cased.chrf_signature
    assert "case:lc" in uncased.bleu_signature and "case:lc" in uncased.chrf_signature


def test_the_tokenizer_decides_what_a_word_is():
    assert corpus_scores(["a b c, d"], ["a b c , d"], tokenize="13a").bleu == pytest.approx(100.0)
    assert corpus_scores(["a b c, d"], ["a b c , d"], tokenize="none").bleu < 50
    assert corpus_scores(["我爱你们"], ["我爱你们"], tokenize="zh").hypothesis_length == 4


@pytest.mark.parametrize("tokenize", ["13a", "none", "intl", "char", "zh"])
def test_signatures_name_what_the_figures_depend_on(tokenize):
    scores = corpus_scores(HYPOTHESES, REFERENCES, tokenize=tokenize)
    fields = dict(part.split(":") for part in scores.bleu_signature.split("|"))
    assert fields.pop("version")
    assert fields == {
        "nrefs": "1", "case": "mixed", "eff": "no", "tok": tokenize, "smooth": "exp",
    }  # fmt: skip
    fields = dict(part.split(":") for part in scores.chrf_signature.split("|"))
    assert (fields["nc"], fields["nw"], fields["space"]) == ("6", "0", "no")


def test_scores_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        corpus_scores(REFERENCES, REFERENCES).bleu = 99.0


def test_counts_that_differ_are_refused():
    with pytest.raises(InputError, match="^2 hypotheses for 3 references"):
        corpus_scores(HYPOTHESES[:2], REFERENCES)
    with pytest.raises(InputError, match="^0 hypotheses for 0 references"):
        corpus_scores([], [])


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(InputError, match="tokenize='13b' is not one of 13a, none, intl.*: 13a"):
        corpus_scores(HYPOTHESES, REFERENCES, tokenize="13b")


def test_a_tokenizer_without_its_package_is_refused(monkeypatch, tmp_path):
    # Blocks the import, so that the test sees the same with and without the package.
    for module in ("MeCab", "ipadic", "sacrebleu.tokenizers.tokenizer_ja_mecab"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(InputError, match="^tokenize='ja-mecab' cannot be used: "):
        corpus_scores(["これはペンです"], ["これはペンです"], tokenize="ja-mecab")
    config = small_config("nowhere", tmp_path, training__bleu_tokenize="ja-mecab")
    with pytest.raises(InputError, match="^training.bleu_tokenize='ja-mecab' cannot be used: "):
        prepare_run(config, tmp_path / "run")
