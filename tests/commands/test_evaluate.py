"""`python -m jaxformer evaluate`: a split of the run, or two files; as text or as JSON."""

import json

import pytest
from training_run import read_metrics, write_pairs

from jaxformer.__main__ import main
from jaxformer.decoding.translator import Translator


@pytest.fixture
def run(small_run, capsys):
    """Run the command on the small run; returns what it prints."""

    def run_command(*flags):
        status = main(["evaluate", f"--workdir={small_run.workdir}", *map(str, flags)])
        assert status == 0
        return capsys.readouterr().out

    return run_command


def test_the_test_split_with_the_best_checkpoint_repeats_the_figures_of_training(run, small_run):
    found = json.loads(run("--format=json"))
    (stored,) = read_metrics(small_run.workdir, "test")
    for name in ("loss", "perplexity", "accuracy", "bleu", "chrf"):
        assert found[name] == pytest.approx(stored[name], rel=1e-6)
    assert found["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert found["chrf_signature"].startswith("nrefs:1|case:mixed") and found["sentences"] == 16
    assert found["sentences_per_second"] == pytest.approx(16 / found["seconds"])


def test_text_shows_the_figures_with_their_signatures(run, small_run):
    lines = run("--split=validation", "--greedy", "--checkpoint=120").split("\n")
    stored = read_metrics(small_run.workdir, "validation")[-1]
    assert lines[0].split() == ["BLEU", f"{stored['bleu']:.2f}", stored["bleu_signature"]]
    assert [line.split()[0] for line in lines[:6]] == [
        "BLEU", "chrF", "loss", "perplexity", "accuracy", "speed",
    ]  # fmt: skip
    assert lines[2].split()[1] == f"{stored['loss']:.4f}"


def test_two_files_other_scoring_and_the_translations(run, small_run, tmp_path):
    write_pairs(tmp_path, "own", [("one two", "UN DEUX"), ("three four", "trois , quatre")])
    output = tmp_path / "own.out"
    flags = (f"--source={tmp_path / 'own.en'}", f"--reference={tmp_path / 'own.fr'}", "--greedy")
    scored = json.loads(
        run(*flags, "--tokenize=none", "--lowercase", f"--output={output}", "--format=json")
    )
    translator = Translator.from_workdir(small_run.workdir)
    assert output.read_bytes().decode() == "".join(
        f"{text}\n" for text in translator(["one two", "three four"])
    )
    assert "tok:none" in scored["bleu_signature"] and "case:lc" in scored["bleu_signature"]
    assert "case:lc" in scored["chrf_signature"] and scored["sentences"] == 2
    plain = json.loads(run(*flags, "--format=json"))
    assert "case:mixed" in plain["bleu_signature"] and plain["chrf"] < scored["chrf"]
    assert plain["loss"] == scored["loss"]


def test_an_output_that_cannot_be_written_is_refused_before_the_work(small_run, tmp_path, capsys):
    status = main(
        ["evaluate", f"--workdir={small_run.workdir}", f"--output={tmp_path / 'no' / 'file'}"]
    )
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith(f"error: --output={tmp_path}/no/file: ") and err.count("\n") == 1
    assert f"folder {tmp_path}/no; " in err


def test_a_tokenizer_of_the_run_that_is_not_there_is_refused_before_the_work(
    small_run, monkeypatch, capsys
):
    monkeypatch.setattr("jaxformer.commands.evaluate.measure", None)
    monkeypatch.setattr(
        "jaxformer.evaluation.bleu.BLEU_TOKENIZERS", ("none",)
    )  # as if the run's needed a package that is missing
    assert main(["evaluate", f"--workdir={small_run.workdir}"]) == 2
    assert "error: training.bleu_tokenize='13a'" in capsys.readouterr().err
    assert main(["evaluate", f"--workdir={small_run.workdir}", "--tokenize=13b"]) == 2
    assert "error: --tokenize='13b'" in capsys.readouterr().err
