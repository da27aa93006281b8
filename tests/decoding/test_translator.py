"""Text in, text out: shapes, order, independence of the batch, and what is refused or said."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from saved_states import ranked_by
from training_run import number_pairs

from jaxformer.config import DecodingConfig, MeshConfig
from jaxformer.data.tokenizers import load_tokenizers
from jaxformer.decoding.strategies import BeamSearch, Greedy
from jaxformer.decoding.translator import (
    Hypothesis,
    Translator,
    abstract_params,
    make_strategy,
)
from jaxformer.errors import InputError
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import parameter_shardings
from jaxformer.storage.average import average_checkpoints

LINES = [source for source, _ in number_pairs(8, 5)]


@pytest.fixture(scope="module")
def translator(small_run):
    return Translator.from_workdir(small_run.workdir)


def with_decoding(translator, mesh=None, params=None, **changes):
    """The same model with other decoding settings."""
    return Translator(
        translator.model,
        translator.params if params is None else params,
        translator.source_tokenizer,
        translator.target_tokenizer,
        dataclasses.replace(translator.config, **changes),
        mesh,
    )


def test_the_trained_model_translates(translator):
    assert translator("one two") == "un deux"
    assert translator(["three four", "one two"]) == ["trois quatre", "un deux"]
    assert translator([]) == []


def test_blank_lines_keep_their_place(translator):
    assert translator("") == "" and translator(" \t ") == ""
    assert translator(["", "one two", " ", "three four", ""]) == [
        "", "un deux", "", "trois quatre", "",
    ]  # fmt: skip
    assert translator.translate([""]) == [[Hypothesis("", 0.0, 0.0, 0, False)]]


def test_neighbours_order_and_batch_size_change_nothing(translator):
    whole = translator.translate(LINES)
    alone = [translator.translate([line])[0] for line in LINES]
    backwards = translator.translate(LINES[::-1])[::-1]
    small = with_decoding(translator, tokens_per_batch=16).translate(LINES[:3]) + whole[3:]
    beside_long = translator.translate([*LINES, " ".join(LINES)])[:-1]
    for other in (alone, backwards, small, beside_long):
        for one, two in zip(whole, other, strict=True):
            assert [h.text for h in one] == [h.text for h in two]
            assert [h.num_tokens for h in one] == [h.num_tokens for h in two]
            np.testing.assert_allclose([h.score for h in one], [h.score for h in two], atol=2e-5)


@pytest.mark.parametrize(
    ("name", "alpha", "penalty"),
    [("gnmt", 0.6, lambda n: ((5 + n) / 6) ** 0.6), ("power", 1.0, lambda n: n)],
)
def test_hypotheses_are_ranked_by_their_penalised_log_probability(translator, name, alpha, penalty):
    found = with_decoding(translator, length_penalty=name, alpha=alpha).translate(LINES[:4])
    assert [len(hypotheses) for hypotheses in found] == [3] * 4
    for hypotheses in found:
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({h.text for h in hypotheses}) > 1
        for h in hypotheses:
            assert h.log_prob < 0
            assert h.score == pytest.approx(h.log_prob / penalty(h.num_tokens), rel=1e-5)


def test_one_beam_is_greedy_and_more_beams_never_score_worse_here(translator):
    greedy = with_decoding(translator, beam_size=1).translate(LINES)
    assert [len(hypotheses) for hypotheses in greedy] == [1] * len(LINES)
    beams = translator.translate(LINES)
    total = sum(h[0].log_prob / ((5 + h[0].num_tokens) / 6) ** 0.6 for h in greedy)
    assert sum(h[0].score for h in beams) >= total - 1e-4
    assert make_strategy(translator.config) == BeamSearch(3, "gnmt", 0.6)
    assert make_strategy(dataclasses.replace(translator.config, beam_size=1)) == Greedy()


def test_log_probabilities_are_those_of_teacher_forcing(translator):
    greedy = with_decoding(translator, beam_size=1)
    line, (found,) = LINES[0], greedy.translate(LINES)[0]
    source, target = greedy.source_tokenizer, greedy.target_tokenizer
    inputs = np.array([[*source.encode([line])[0], source.eos_id]], np.int32)
    ids = [*target.encode([found.text])[0], target.eos_id]
    assert len(ids) == found.num_tokens
    previous = np.array([[target.bos_id, *ids[:-1]]], np.int32)
    logits = greedy.model.apply({"params": greedy.params}, inputs, previous).logits
    log_probs = jax.nn.log_softmax(logits.astype(np.float32))[0]
    total = sum(float(log_probs[i, token]) for i, token in enumerate(ids))
    assert found.log_prob == pytest.approx(total, abs=1e-4)


def test_a_length_limit_is_kept_and_told(translator):
    short = with_decoding(translator, max_length_factor=0.0, max_length_extra=2, beam_size=1)
    (found,) = short.translate(["one two three four five"])[0]
    assert found.truncated and found.num_tokens <= 3
    assert not translator.translate(["one two"])[0][0].truncated


def test_a_long_line_is_cut_with_a_warning_that_names_it(translator, capsys):
    limited = with_decoding(translator, max_source_length=4)
    line = "one two three four five"
    tokens = limited.source_tokenizer.encode([line])[0]
    cut = limited.source_tokenizer.decode([tokens[:3]])[0]
    first, second = limited.translate(["one two", line], first_line=41)
    assert capsys.readouterr().err == (
        f"warning: line 42 has {len(tokens) + 1} tokens; only the first 4 are translated "
        "(decoding.max_source_length)\n"
    )
    assert second[0].text == translator(cut) and first[0].text == "un deux"


def test_progress_counts_the_sentences(translator):
    counts = []
    with_decoding(translator, tokens_per_batch=16).translate(LINES, progress=counts.append)
    assert counts == [1] * len(LINES)


def test_eight_devices_translate_as_one(translator):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    params = jax.device_put(translator.params, parameter_shardings(translator.params, mesh))
    spread = with_decoding(translator, mesh=mesh, params=params).translate(LINES)
    for one, two in zip(translator.translate(LINES), spread, strict=True):
        assert one[0].text == two[0].text
        assert math.isclose(one[0].score, two[0].score, abs_tol=2e-5)


def test_checkpoints_by_name(small_run, translator):
    checkpoints = small_run.workdir / "checkpoints"
    early = Translator.from_workdir(small_run.workdir, checkpoint="20")
    latest = Translator.from_workdir(small_run.workdir, checkpoint="latest")
    last = Translator.from_workdir(small_run.workdir, checkpoint="120")
    jax.tree.map(np.testing.assert_array_equal, latest.params, last.params)
    kernels = [t.params["token_embedding"]["embedding"] for t in (early, last)]
    assert np.abs(kernels[0] - kernels[1]).max() > 0.01
    assert translator.config == small_run.config.decoding
    with pytest.raises(InputError, match=r"--checkpoint=7 is not in .*there are: best, latest, 20"):
        Translator.from_workdir(small_run.workdir, checkpoint="7")
    assert not list(checkpoints.glob("average_*"))


def test_an_average_translates(small_run, tmp_path, translator):
    workdir = tmp_path / "run"
    workdir.mkdir()
    for name in ("config.json", "tokenizer.model"):
        (workdir / name).write_bytes((small_run.workdir / name).read_bytes())
    (workdir / "checkpoints").mkdir()
    for step in ("100", "120"):
        target = small_run.workdir / "checkpoints" / step
        (workdir / "checkpoints" / step).symlink_to(target)
    average_checkpoints(
        workdir / "checkpoints", abstract_params(translator.model), count=2, choose="last",
        ranking=ranked_by("bleu"),
    )  # fmt: skip
    averaged = Translator.from_workdir(workdir, checkpoint="average_last_2")
    assert averaged("one two") == "un deux"


def test_parameters_of_another_model_are_refused(small_run, tmp_path):
    text = (small_run.workdir / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"d_ff": 64', '"d_ff": 48'))
    (tmp_path / "tokenizer.model").write_bytes((small_run.workdir / "tokenizer.model").read_bytes())
    (tmp_path / "checkpoints").symlink_to(small_run.workdir / "checkpoints")
    with pytest.raises(InputError, match=r"is not of the model .*:\n  model.d_ff: 64 -> 48\n"):
        Translator.from_workdir(tmp_path)


def test_damaged_parameters_are_not_translated_with(translator):
    nan = jax.tree.map(lambda p: p * np.nan, translator.params)
    with pytest.raises(FloatingPointError, match="the model gives NaN"):
        with_decoding(translator, params=nan)("one two")


def test_a_translator_from_parts_needs_no_workdir(small_run, translator):
    tokenizers = load_tokenizers(small_run.workdir)
    model = Transformer(translator.model.config)
    assert Translator(model, translator.params, *tokenizers).config == DecodingConfig()
    own = Translator(model, translator.params, *tokenizers, translator.config)
    assert own("one two") == "un deux"


def test_learned_positions_end_a_sentence_and_never_give_nan(translator, capsys):
    config = dataclasses.replace(translator.model.config, positions="learned", max_length=9)
    model = Transformer(config)
    token = np.zeros((1, 1), np.int32)
    few = Translator(
        model,
        model.init(jax.random.key(0), token, token)["params"],
        translator.source_tokenizer,
        translator.target_tokenizer,
        translator.config,
    )
    hypotheses = few.translate(["one two", "one two " * 9])  # buckets of 16 tokens and more
    assert [0 < each[0].num_tokens <= 9 for each in hypotheses] == [True, True]
    warning = "only the first 9 are translated (model.max_length, the rows of learned positions)"
    assert warning in capsys.readouterr().err
