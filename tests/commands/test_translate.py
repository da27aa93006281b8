"""`python -m jaxformer translate`: files, pipes and the prompt, text and JSON lines."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from training_run import number_pairs

from jaxformer.__main__ import main
from jaxformer.commands import translate
from jaxformer.decoding.strategies import Sample
from jaxformer.decoding.translator import Translator, abstract_params
from jaxformer.models.transformer import Transformer
from jaxformer.storage.parameters import save_params
from jaxformer.storage.workdir import Workdir

ROOT = Path(__file__).parent.parent.parent
LINES = ["one two", "", "three four", *(source for source, _ in number_pairs(4, 5))]


@pytest.fixture(scope="module")
def expected(small_run):
    """The hypotheses of LINES as the library gives them."""
    return Translator.from_workdir(small_run.workdir).translate(LINES)


@pytest.fixture
def lines_file(tmp_path):
    path = tmp_path / "lines.en"
    path.write_bytes("".join(f"{line}\n" for line in LINES).encode())
    return path


@pytest.fixture
def run(small_run, capsys):
    """Run the command on the small run; returns what it prints."""

    def run_command(*flags):
        status = main(["translate", f"--workdir={small_run.workdir}", *map(str, flags)])
        assert status == 0
        return capsys.readouterr().out

    return run_command


class Stdin:
    """A standard input of bytes, or a terminal."""

    def __init__(self, data=b"", terminal=False):
        self.buffer, self._terminal = io.BytesIO(data), terminal

    def isatty(self):
        return self._terminal


def test_a_file_line_for_line(run, lines_file, expected):
    out = run(f"--input={lines_file}")
    assert out == "".join(f"{hypotheses[0].text}\n" for hypotheses in expected)
    assert out.startswith("un deux\n\ntrois quatre\n")


def test_standard_input(run, monkeypatch, expected):
    monkeypatch.setattr(sys, "stdin", Stdin("\r\n".join(LINES).encode()))
    assert run() == "".join(f"{hypotheses[0].text}\n" for hypotheses in expected)


def test_an_empty_input_gives_an_empty_output(run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin())
    assert run() == ""


def test_an_output_file_appears_whole(run, lines_file, tmp_path, expected):
    output = tmp_path / "lines.fr"
    assert run(f"--input={lines_file}", f"--output={output}") == ""
    assert output.read_bytes().decode() == "".join(f"{h[0].text}\n" for h in expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["lines.en", "lines.fr"]


def test_chunks_join_without_a_seam(run, lines_file, monkeypatch, expected):
    monkeypatch.setattr(translate, "CHUNK_LINES", 3)
    out = run(f"--input={lines_file}", "--format=jsonl")
    assert [json.loads(line)["line"] for line in out.split("\n")[:-1]] == [1, 2, 3, 4, 5, 6, 7]
    texts = [json.loads(line)["translations"][0]["text"] for line in out.split("\n")[:-1]]
    assert texts == [hypotheses[0].text for hypotheses in expected]


def test_several_translations_as_text(run, lines_file, expected):
    out = run(f"--input={lines_file}", "--top_beams=2")
    assert out.split("\n")[:-1] == [
        f"{number}\t{h.score:.4f}\t{h.text}"
        for number, hypotheses in enumerate(expected, 1)
        for h in hypotheses[:2]
    ]


def test_several_translations_as_json_lines(run, lines_file, expected):
    out = run(f"--input={lines_file}", "--top_beams=3", "--format=jsonl")
    rows = [json.loads(line) for line in out.split("\n")[:-1]]
    assert [row["source"] for row in rows] == LINES
    for row, hypotheses in zip(rows, expected, strict=True):
        assert [t["text"] for t in row["translations"]] == [h.text for h in hypotheses]
        assert [t["tokens"] for t in row["translations"]] == [h.num_tokens for h in hypotheses]
        for found, h in zip(row["translations"], hypotheses, strict=True):
            assert found["score"] == pytest.approx(h.score, abs=2e-5)
            assert found["log_prob"] == pytest.approx(h.log_prob, abs=2e-5)
            assert found["truncated"] == h.truncated


def test_greedy_is_a_beam_of_one(run, lines_file):
    flags = [f"--input={lines_file}", "--format=jsonl"]
    greedy, one = run(*flags, "--greedy"), run(*flags, "--beam_size=1")
    assert greedy == one and json.loads(greedy.split("\n")[0])["translations"][0]["text"]


def test_a_prefix_file_begins_each_translation(run, lines_file, tmp_path, monkeypatch, small_run):
    prefixes = ["neuf", "", "trois", *[""] * 4]
    file = tmp_path / "prefixes"
    file.write_text("".join(f"{prefix}\n" for prefix in prefixes))
    wanted = Translator.from_workdir(small_run.workdir).translate(LINES, prefixes)
    text = "".join(f"{hypotheses[0].text}\n" for hypotheses in wanted)
    assert text.startswith("neuf ")
    monkeypatch.setattr(translate, "CHUNK_LINES", 3)
    assert run(f"--input={lines_file}", f"--prefix_file={file}") == text
    monkeypatch.setattr(sys, "stdin", Stdin(lines_file.read_bytes()))
    assert run(f"--prefix_file={file}") == text


@pytest.mark.parametrize("source", ["file", "pipe"])
@pytest.mark.parametrize("count", [2, 9])
def test_prefixes_of_another_number_of_lines(
    small_run, lines_file, tmp_path, monkeypatch, capsys, source, count
):
    monkeypatch.setattr(translate, "CHUNK_LINES", 2)
    file = tmp_path / "prefixes"
    file.write_text("un\n" + "\n" * (count - 1))
    flags = [f"--workdir={small_run.workdir}", f"--prefix_file={file}", "--greedy"]
    if source == "file":
        flags.append(f"--input={lines_file}")
    monkeypatch.setattr(sys, "stdin", Stdin(lines_file.read_bytes()))
    assert main(["translate", *flags]) == 2
    error = capsys.readouterr().err
    assert f"--prefix_file={file} has {count} lines and the input has 7;" in error


def test_a_prefix_file_needs_sentences(small_run, lines_file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    flags = [f"--workdir={small_run.workdir}", f"--prefix_file={lines_file}"]
    assert main(["translate", *flags]) == 2
    assert "give --input too" in capsys.readouterr().err


def test_samples(run, lines_file, small_run):
    strategy = Sample(temperature=2.0, top_k=20, top_p=0.95, num_samples=2)
    wanted = Translator.from_workdir(small_run.workdir).translate(LINES, strategy=strategy, seed=4)
    flags = [f"--input={lines_file}", "--sample", "--temperature=2", "--top_k=20", "--top_p=0.95"]
    out = run(*flags, "--top_beams=2", "--seed=4", "--format=jsonl")
    found = [json.loads(line)["translations"] for line in out.split("\n")[:-1]]
    assert [[t["text"] for t in each] for each in found] == [[h.text for h in w] for w in wanted]
    first = [each[0]["text"] for each in found]
    assert run(*flags, "--seed=4").split("\n")[:-1] == first
    assert run(*flags, "--seed=5").split("\n")[:-1] != first


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature=0.5"], "--temperature=0.5 shapes the draws of --sample; add --sample"),
        (["--seed=1", "--greedy"], "--seed=1 shapes the draws of --sample"),
        (["--sample", "--temperature=0"], "--temperature=0.0 draws nothing;"),
        (["--sample", "--top_k=-2"], "--top_k=-2 must be at least 0"),
        (["--sample", "--top_p=1.5"], "--top_p=1.5 must be between 1e-06 and 1"),
        (["--sample", "--seed=-1"], "--seed=-1 must be between 0 and"),
        (["--sample", "--top_beams=0"], "--top_beams=0 must be at least 1"),
        (["--sample", "--alpha=1"], "--alpha=1.0 ranks hypotheses, and --sample only draws"),
    ],
)
def test_flags_of_sampling_that_cannot_be(small_run, lines_file, capsys, flags, message):
    words = ["translate", f"--workdir={small_run.workdir}", f"--input={lines_file}", *flags]
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_one_way_to_choose_tokens(small_run, capsys):
    for other in ("--greedy", "--beam_size=3"):
        with pytest.raises(SystemExit) as ended:
            main(["translate", f"--workdir={small_run.workdir}", "--sample", other])
        assert ended.value.code == 2
        assert "not allowed with argument" in capsys.readouterr().err


def test_search_flags_reach_the_decoding_configuration(run, lines_file, monkeypatch):
    seen = []

    class Stop(Exception):
        pass

    def from_workdir(path, *, checkpoint, decoding, mesh):
        seen.append((checkpoint, decoding))
        raise Stop

    monkeypatch.setattr(Translator, "from_workdir", from_workdir)
    with pytest.raises(Stop):
        run(
            f"--input={lines_file}", "--beam_size=7", "--length_penalty=power", "--alpha=0.25",
            "--max_length=9", "--checkpoint=40",
        )  # fmt: skip
    ((checkpoint, decoding),) = seen
    assert checkpoint == "40"
    assert (decoding.beam_size, decoding.length_penalty, decoding.alpha) == (7, "power", 0.25)
    assert (decoding.max_length_factor, decoding.max_length_extra) == (0.0, 9)


def test_the_prompt_translates_line_by_line_until_the_end(run, monkeypatch, small_run):
    typed = iter(["one two", "", "three four"])

    def type_line(mark):
        assert mark == "> "
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    monkeypatch.setattr("builtins.input", type_line)
    assert run() == "un deux\n\ntrois quatre\n"


def test_a_line_that_is_not_utf8_does_not_end_the_prompt(run, monkeypatch, capsys):
    typed = iter(["on\udce9 two", UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "bad"), "one two"])

    def type_line(mark):
        line = next(typed, EOFError())
        if isinstance(line, Exception):
            raise line
        return line

    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr(translate, "print", lambda *a, **k: errors.append(a), raising=False)
    errors = []
    assert run() == "un deux\n"
    told = [message[0] for message in errors if message and "not UTF-8" in message[0]]
    assert [message.partition(" is")[0] for message in told] == ["line 1", "line 2"]


def test_ctrl_c_at_the_prompt_ends_with_130(small_run, monkeypatch, capsys):
    def interrupt(mark):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Stdin(terminal=True))
    monkeypatch.setattr("builtins.input", interrupt)
    assert main(["translate", f"--workdir={small_run.workdir}"]) == 130
    assert "Ctrl-D ends" in capsys.readouterr().err


def test_a_terminal_and_an_output_file_is_no_prompt(run, monkeypatch, tmp_path):
    stdin = Stdin(b"one two\n", terminal=True)
    monkeypatch.setattr(sys, "stdin", stdin)
    run(f"--output={tmp_path / 'out'}")
    assert (tmp_path / "out").read_text() == "un deux\n"


def test_parameters_that_are_not_numbers(small_run, lines_file, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(small_run.workdir, workdir)
    model = Transformer(Workdir(workdir).load_config().model)
    nothing = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), abstract_params(model))
    save_params(workdir / "checkpoints" / "average_nan", nothing)
    flags = [f"--workdir={workdir}", "--checkpoint=average_nan", f"--input={lines_file}"]
    assert main(["translate", *flags]) == 2
    assert "error: the model gives NaN" in capsys.readouterr().err


def test_a_length_that_no_machine_can_hold(small_run, lines_file, capsys):
    flags = [f"--workdir={small_run.workdir}", "--max_length=1000000000"]
    assert main(["translate", *flags, f"--input={lines_file}"]) == 2
    assert "--max_length" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback(small_run, lines_file, compiled_programs):
    command = [sys.executable, "-m", "jaxformer", "translate", f"--workdir={small_run.workdir}"]
    with subprocess.Popen(
        [*command, f"--input={lines_file}", "--greedy"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    ) as process:  # fmt: skip
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (141, "")
