"""docs/inside-the-transformer.md runs from top to bottom, and makes each picture that it shows."""

import os
import re
import shlex
import sys
from pathlib import Path

import jupytext
import numpy as np
import pytest

from jaxformer.__main__ import main

PAGE = Path(__file__).parents[1] / "docs" / "inside-the-transformer.md"
CELL = re.compile(r"^```(python|sh)\n(.*?)^```$", re.S | re.M)
PICTURE = re.compile(r"!\[([^]]*)\]\(([^)]+)\)")


@pytest.fixture
def tour_folder(tmp_path, monkeypatch, compiled_programs, one_device):
    """A folder like docs/, and a training budget of two steps."""
    folder = tmp_path / "docs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the page puts a folder in front
    monkeypatch.setenv("WORKDIR", "")
    monkeypatch.setenv("TOUR_STEPS", "2")
    monkeypatch.setenv("TOUR_PAIRS", "3000")
    monkeypatch.setenv("JAXFORMER_CACHE", str(tmp_path / "cache"))
    # 2,000 translations of a model that knows nothing: the page does not use them.
    monkeypatch.setattr("jaxformer.training.loop.evaluate_held_out", lambda *_, **__: {})
    return folder


def run_shell_cell(text):
    """Each line must be a command of ours; it runs in this process."""
    for line in text.replace("\\\n", " ").strip().split("\n"):
        words = shlex.split(os.path.expandvars(line))
        assert words[:3] == ["python", "-m", "jaxformer"], line
        assert main(words[3:]) == 0, line


def test_the_tour_runs_and_makes_its_pictures(tour_folder):
    text = PAGE.read_text("utf-8")
    names = {"__name__": "tour"}
    cells = CELL.findall(text)
    with np.printoptions():
        for language, code in cells:
            if language == "sh":
                run_shell_cell(code)
            else:
                line = text[: text.index(code)].count("\n")
                exec(compile("\n" * line + code, str(PAGE), "exec"), names)
    assert os.environ["PATH"].startswith(str(Path(sys.executable).parent))
    assert len(cells) >= 25
    pictures = [path for _, path in PICTURE.findall(text)]
    assert len(pictures) == len(set(pictures)) == 8
    for path in pictures:
        assert (tour_folder / path).read_bytes().startswith(b"\x89PNG\r\n"), path
    assert (tour_folder / "inside" / "report.html").stat().st_size > 10_000
    made = {f"inside/{path.name}" for path in (tour_folder / "inside").iterdir()}
    assert made == {*pictures, "inside/report.html"}


def test_each_picture_has_a_description_and_lies_beside_the_page():
    for description, path in PICTURE.findall(PAGE.read_text("utf-8")):
        assert len(description) > 20
        assert (PAGE.parent / path).read_bytes().startswith(b"\x89PNG\r\n")


def test_the_page_is_a_notebook_for_jupytext():
    text = PAGE.read_text("utf-8")
    cells = [
        cell.source for cell in jupytext.reads(text, fmt="md").cells if cell.cell_type == "code"
    ]
    expected = [
        code.strip() if language == "python" else "%%sh\n" + code.strip()
        for language, code in CELL.findall(text)
    ]
    assert cells == expected
