"""`python -m jaxformer plot`: each picture makes its file, each mistake one line."""

import json
import re
import sys
import xml.etree.ElementTree

import pytest

from jaxformer.__main__ import main
from jaxformer.commands.plot import DRAW, numbers
from jaxformer.errors import InputError


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [{"step": step, "split": "train", "loss": 9.0 - step} for step in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def plot(tmp_path, workdir, capsys):
    """Call the command with an output in a folder of its own: (status, file, stdout, stderr)."""

    def call(picture, *flags, output="picture.svg"):
        path = tmp_path / output
        more = [f"--workdir={workdir}"] if picture == "curves" else []
        status = main(["plot", picture, *more, *flags, f"--output={path}"])
        printed = capsys.readouterr()
        return status, path, printed.out, printed.err

    return call


def texts(path):
    """What an SVG says: matplotlib writes each text as a comment beside its outlines."""
    builder = xml.etree.ElementTree.TreeBuilder(insert_comments=True)
    parser = xml.etree.ElementTree.XMLParser(target=builder)
    tree = xml.etree.ElementTree.fromstring(path.read_bytes(), parser)
    comments = [e.text.strip() for e in tree.iter() if e.tag is xml.etree.ElementTree.Comment]
    return [comment.replace("- -", "--") for comment in comments]


SAID = {
    "positions": ("Sinusoidal positions, d_model = 128", "position in the sentence (tokens)"),
    "schedule": ("d_model 256, warm-up 4,000", "d_model 512, warm-up 8,000", "update"),
    "label-smoothing": ("ε = 0.1", "loss of the token (nats)", "0.9125"),
    "masks": ("packed, decoder", "another sentence", "pourquoi"),
    "curves": ("run", "Loss (nats a target token)"),
}


@pytest.mark.parametrize("picture", DRAW)
def test_each_picture_makes_its_svg(plot, picture):
    status, path, out, err = plot(picture)
    assert (status, err) == (0, "")
    assert out == f"{path}  {path.stat().st_size:,} bytes\n"
    said = texts(path)
    assert all(text in said for text in SAID[picture]), said


@pytest.mark.parametrize("picture", ["schedule", "curves"])
def test_a_picture_is_a_png_where_asked_for(plot, picture):
    status, path, _, _ = plot(picture, output="picture.png")
    assert status == 0 and path.read_bytes().startswith(b"\x89PNG\r\n")


def test_the_same_command_gives_the_same_file(plot):
    first = plot("masks")[1].read_bytes()
    assert plot("masks", output="again.svg")[1].read_bytes() == first


def test_flags_reach_the_picture(plot):
    assert "Sinusoidal positions, d_model = 16" in texts(plot("positions", "--d_model=16")[1])
    flags = ("--schedule=cosine", "--warmup_steps=5,10", "--num_steps=50", "--learning_rate=0.5")
    said = texts(plot("schedule", *flags)[1])
    assert "warm-up 5" in said and "warm-up 10" in said
    assert "Learning rate, schedule = cosine" in said
    said = texts(plot("label-smoothing", "--label_smoothing=0.3,0.2", "--vocab_size=1_000")[1])
    assert "ε = 0.2" in said and "ε = 0.3" in said
    said = texts(plot("masks", "--pair=a = b", "--pair=c d = e f")[1])
    assert "row 1, encoder" in said and "d" in said


@pytest.mark.parametrize(
    ("picture", "flags", "message"),
    [
        ("positions", ["--d_model=7"], "d_model=7 is odd"),
        ("schedule", ["--warmup_steps=ten"], "--warmup_steps=ten: 'ten'.* 256,512"),
        ("schedule", ["--d_model=0"], "--d_model=0: .*at least 1"),
        ("schedule", ["--d_model=8", "--schedule=cosine"], "--d_model=8 .*--schedule=paper"),
        ("schedule", ["--warmup_steps=0"], "warmup_steps=0.* 1"),
        ("label-smoothing", ["--label_smoothing=nan"], "--label_smoothing=nan: .*at least 0"),
        ("label-smoothing", ["--label_smoothing=0.95"], "label_smoothing=0.95"),
        ("masks", ["--pair=the cat"], "--pair='the cat': .*'the cat = le chat'"),
        ("masks", ["--pair=a = b"], "1 sentence pairs.*two or more"),
        ("curves", ["--workdir=nowhere"], "--workdir=nowhere: "),
    ],
)
def test_a_mistake_is_one_line_and_no_file(plot, picture, flags, message):
    status, path, out, err = plot(picture, *flags)
    assert status == 2 and out == "" and err.count("\n") == 1
    assert re.search(message, err)
    assert not path.exists()


def test_a_bad_output_is_refused_before_anything_is_drawn(plot, monkeypatch):
    monkeypatch.setitem(DRAW, "positions", None)
    status, _, _, err = plot("positions", output="picture.pdf")
    assert status == 2 and "picture.pdf " in err and ".png or .svg" in err


def test_without_matplotlib_the_command_says_what_to_install(plot, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, _, _, err = plot("positions")
    assert status == 2 and "pip install 'matplotlib>=3.9'" in err


def test_numbers_are_read_once_each_in_order():
    assert numbers("--d_model", "512, 256,512,1_024", int, 1) == [512, 256, 1024]
    with pytest.raises(InputError, match="--d_model=512,: ''"):
        numbers("--d_model", "512,", int, 1)
