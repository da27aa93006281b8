"""Losses over a corpus and scores of translations: each pair once, whatever the batching."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from training_run import number_pairs, read_metrics, write_pairs

from jaxformer.config import MeshConfig
from jaxformer.data.text_files import FilePair
from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.bleu import corpus_scores
from jaxformer.evaluation.translations import TranslationEvaluator
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import parameter_shardings, place_like_parameters
from jaxformer.tasks.open_run import StoredRun
from jaxformer.tasks.translation_loss import Translation


@pytest.fixture(scope="module")
def evaluator(small_run):
    run, mesh = StoredRun.of(small_run.workdir), make_mesh(MeshConfig())
    params = place_like_parameters(run.shapes(), mesh)
    return run.task.evaluator(run.config, run.objective, None, run.vocabularies, mesh, params)


@pytest.fixture(scope="module")
def params(small_run, evaluator):
    found = Translator.from_workdir(small_run.workdir, checkpoint="120").params
    return jax.device_put(found, parameter_shardings(found, evaluator.mesh))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """13 pairs, one with an empty side and one far longer than those of training."""
    folder = tmp_path_factory.mktemp("pairs")
    long = tuple(" ".join(side) for side in zip(*number_pairs(5, 8), strict=True))
    rows = [*number_pairs(11, 7), ("one", ""), long]
    write_pairs(folder, "t", rows)
    return FilePair(folder / "t.en", folder / "t.fr")


def test_summarize_divides_by_the_tokens():
    summarize = Translation(TransformerConfig(), pad_id=0, bos_id=2).summarize
    sums = {"loss": 30.0, "nll": 20.0 * math.log(2.0), "correct": 15.0, "weight": 20.0}
    assert summarize(sums) == pytest.approx({"loss": 1.5, "perplexity": 2.0, "accuracy": 0.75})
    assert summarize({"loss": 0.0, "nll": 0.0, "correct": 0.0, "weight": 0.0})["perplexity"] == 1.0
    assert math.isfinite(summarize(sums | {"nll": 1e9})["perplexity"])


def test_the_loss_counts_every_pair_once(evaluator, params, pairs):
    data = evaluator.load_from(pairs, "test")
    assert len(data.pairs) == len(data.dataset.corpus) == 13
    found = evaluator.mean_loss(params, data.dataset)
    objective, totals = evaluator.objective, {}
    plain = jax.device_get(params)
    sums = jax.jit(lambda batch: objective.loss_sums(plain, batch))
    for index in range(13):
        batch = {}
        for name, ids in zip(("inputs", "targets"), data.dataset.corpus.pair(index), strict=True):
            batch[name] = np.full((1, 64), objective.pad_id, np.int32)
            batch[name][0, : len(ids)] = ids
        for name, value in sums(batch).items():
            totals[name] = totals.get(name, 0.0) + float(value)
    assert totals["weight"] == data.dataset.corpus.target_lengths.sum()
    assert found == pytest.approx(objective.summarize(totals), rel=1e-5)


def test_other_batches_measure_the_same(evaluator, params, pairs):
    config = dataclasses.replace(
        evaluator.config,
        data=dataclasses.replace(evaluator.config.data, tokens_per_batch=64, num_buckets=3),
    )
    other = TranslationEvaluator(
        config, evaluator.objective, evaluator.tokenizers, evaluator.mesh, params
    )
    one, two = (e.mean_loss(params, e.load_from(pairs, "test").dataset) for e in (evaluator, other))
    assert two == pytest.approx(one, rel=1e-5)


def test_measure_scores_the_translations_in_order(evaluator, params, pairs, small_run):
    decoding = dataclasses.replace(evaluator.config.decoding, beam_size=1)
    data = evaluator.load_from(pairs, "test")
    result = evaluator.translate_and_score(params, data, decoding)
    translator = Translator.from_workdir(small_run.workdir, checkpoint="120", decoding=decoding)
    assert result.hypotheses == translator([source for source, _ in data.pairs])
    assert result.scores == corpus_scores(result.hypotheses, [t for _, t in data.pairs])
    assert result.sentences == 13 and result.seconds > 0
    assert result.metrics() == {
        "loss": result.loss, "perplexity": result.perplexity, "accuracy": result.accuracy,
        "bleu": result.scores.bleu, "chrf": result.scores.chrf,
    }  # fmt: skip
    few = evaluator.translate_and_score(
        params, data, decoding, count=4, tokenize="none", lowercase=True
    )
    assert few.hypotheses == result.hypotheses[:4] and few.loss == result.loss
    assert "tok:none" in few.scores.bleu_signature and "case:lc" in few.scores.bleu_signature


def test_the_validation_of_training_can_be_repeated(evaluator, params, small_run):
    source = FilePair(small_run.corpus / "valid.en", small_run.corpus / "valid.fr")
    decoding = dataclasses.replace(evaluator.config.decoding, beam_size=1)
    result = evaluator.translate_and_score(params, evaluator.load_from(source, "test"), decoding)
    stored = read_metrics(small_run.workdir, "validation")[-1]
    assert stored["step"] == 120
    for name, value in result.metrics().items():
        np.testing.assert_allclose(value, stored[name], rtol=1e-6)
