"""`python -m jaxformer visualize`: the page that it writes, and what it refuses."""

import json
import re

import pytest
from random_translator import TEXT

from jaxformer.__main__ import main
from jaxformer.decoding.translator import Translator
from jaxformer.visualization.packed_arrays import unpack

TEXTS = ["one two", "three <b>four</b> 😀"]


@pytest.fixture
def visualize(small_run, tmp_path, capsys):
    """Run the command on the small run: (exit status, standard output, standard error)."""

    def run(*flags, output=tmp_path / "report.html"):
        try:
            status = main(
                ["visualize", f"--workdir={small_run.workdir}", f"--output={output}", *flags]
            )
        except SystemExit as ended:
            status = ended.code
        return status, *capsys.readouterr()

    return run


def data_of(page):
    """What the page's own script reads."""
    text = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page, re.S)[1]
    return json.loads(text)


def test_the_page_shows_what_translate_prints(visualize, small_run, tmp_path):
    status, out, _ = visualize(*(f"--text={text}" for text in TEXTS))
    page = (tmp_path / "report.html").read_text("utf-8")
    size = len(page.encode())
    assert status == 0
    assert out == f"{tmp_path / 'report.html'}: 2 sentences, {size / 1000:,.0f} kB\n"
    assert size < 1_000_000 and [path.name for path in tmp_path.iterdir()] == ["report.html"]
    data = data_of(page)
    translator = Translator.from_workdir(small_run.workdir)
    for sentence, text in zip(data["sentences"], TEXTS, strict=True):
        assert sentence["source"] == text and sentence["translation"] == translator(text)
        beams = [found["text"] for found in sentence["beam"]["returned"]]
        assert beams == [h.text for h in translator.translate([text])[0]]
        for side, name in (
            ("encoder", "attention"), ("decoder", "self_attention"), ("decoder", "cross_attention"),
        ):  # fmt: skip
            assert (unpack(sentence[side][name]).sum(axis=-1) == 1.0).all()
    assert data["sentences"][0]["translation"] == "un deux"
    assert "<b>four" not in page
    assert data["model"]["label_smoothing"] == small_run.config.training.label_smoothing
    assert data["model"]["checkpoint"].isdigit()


def test_the_right_translation_and_the_search_flags(visualize, small_run, tmp_path):
    status, _, _ = visualize(
        "--text=one two", "--translation=un deux", "--beam_size=5", "--length_penalty=power",
        "--alpha=1", "--top_beams=2", "--layers=0", "--checkpoint=40",
    )  # fmt: skip
    data = data_of((tmp_path / "report.html").read_text("utf-8"))
    (sentence,) = data["sentences"]
    assert status == 0 and sentence["reference"] == "un deux"
    assert [piece["text"] for piece in sentence["reference_steps"]["pieces"]][-1] == "</s>"
    beam = sentence["beam"]
    assert (beam["width"], beam["length_penalty"], beam["alpha"]) == (5, "power", 1.0)
    assert len(beam["returned"]) == 2 and data["model"]["checkpoint"] == "40"


def test_a_file_of_sentences_without_its_blank_lines(visualize, tmp_path):
    lines = tmp_path / "lines.en"
    lines.write_bytes(b"one two\r\n\nthree four\n")
    status, out, err = visualize(f"--input={lines}", "--greedy")
    sentences = data_of((tmp_path / "report.html").read_text("utf-8"))["sentences"]
    assert status == 0 and "2 sentences" in out
    assert [sentence["source"] for sentence in sentences] == ["one two", "three four"]
    assert {sentence["beam"]["strategy"] for sentence in sentences} == {"greedy"}
    assert f"warning: {lines}, line 2 " in err


def test_a_page_is_replaced_whole_or_not_at_all(visualize, tmp_path):
    output = tmp_path / "report.html"
    output.write_text("old")
    assert visualize("--text=one", "--layers=7")[0] == 2
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], ["--text", "--input"]),
        (["--text=a", "--input=b"], ["--text", "--input"]),
        (["--text=a", "--translation=b", "--translation=c"], ["--translation", " 2 ", " 1 "]),
        (["--input=no.txt", "--translation=c"], ["--translation", " 1 ", "--text", " 0 "]),
        (["--text=a", "--text= "], ["--text=' ', number 2", "one line"]),
        (["--text=a\nb"], ["--text='a\\nb', number 1", "one line"]),
        (["--text=a", "--translation= "], ["--translation=' ', number 1"]),
        (["--text=a", "--translation="], ["--translation is empty"]),
        (["--input=no.txt"], ["no.txt: "]),
        (["--text=a", "--top_beams=4"], ["--top_beams=4", "1 to 3", "--beam_size"]),
        (["--text=a", "--top_beams=0"], ["--top_beams=0", "1 to 3"]),
        (["--text=a", "--layers=1,x"], ["--layers=1,x", "--layers=0,5"]),
        (["--text=a", "--checkpoint=7"], ["--checkpoint=7 ", ": best, latest"]),
        (["--text=a", "--beam_size=0"], ["decoding.beam_size=0", "at least 1"]),
    ],
)
def test_what_is_refused(visualize, flags, words):
    status, out, err = visualize(*flags)
    assert (status, out) == (2, "") and err.count("\n") == 1 and err.startswith("error: ")
    for word in words:
        assert word in err


def test_layers_that_are_not_there(visualize):
    status, _, err = visualize(f"--text={TEXT}", "--layers=1")
    assert status == 2 and "--layers=1: " in err and "encoder" in err and "0 to 0" in err


@pytest.mark.parametrize("name", ["", "no/where/report.html"])
def test_an_output_that_cannot_be_written_is_refused_at_once(visualize, tmp_path, name):
    status, _, err = visualize("--text=one", output=tmp_path / name)
    words = f"{tmp_path}/report.html" if not name else f"folder {tmp_path}/no/where; "
    assert status == 2 and f"--output={tmp_path / name}" in err and words in err


def test_a_file_without_sentences(visualize, tmp_path):
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert f"--input={empty} " in visualize(f"--input={empty}")[2]
