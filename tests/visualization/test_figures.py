"""How pictures are written: complete or not at all, and always the same bytes."""

import os
import subprocess
import sys

import matplotlib
import pytest

from jaxformer.errors import InputError
from jaxformer.visualization.figures import (
    COLOURS,
    LINE_STYLES,
    MARKERS,
    check_picture_path,
    load_matplotlib,
    new_figure,
    styled,
    write_figure,
)


@styled
def draw_line():
    figure = new_figure(3.0, 2.0)
    axis = figure.subplots()
    axis.plot([0, 1, 3], label="a line")
    axis.bar([0, 1], [1, 2], hatch="//")
    axis.legend()
    return figure


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_equal_figures_give_equal_files_without_a_date(tmp_path, suffix):
    first = write_figure(draw_line(), tmp_path / f"first{suffix}")
    second = write_figure(draw_line(), tmp_path / f"second{suffix}")
    content = first.read_bytes()
    assert content == second.read_bytes()
    assert content.startswith({".png": b"\x89PNG\r\n", ".svg": b"<?xml"}[suffix])
    assert b"date" not in content.lower() and b"Matplotlib" not in content
    assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}


def test_an_older_picture_is_replaced(tmp_path):
    path = tmp_path / "line.svg"
    path.write_text("old")
    write_figure(draw_line(), path)
    assert path.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("line.jpg", "=.*/line.jpg .*.png or .svg"),
        ("line", "=.*/line .*.png or .svg"),
        ("no/line.png", "=.*/no/line.png: .*folder .*/no;"),
    ],
)
def test_paths_that_cannot_work_are_refused(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        check_picture_path(tmp_path / name)
    with pytest.raises(InputError, match=message):
        write_figure(draw_line(), tmp_path / name)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "line.png").mkdir()
    with pytest.raises(InputError, match="path=.*/line.png .*folder"):
        write_figure(draw_line(), tmp_path / "line.png")
    assert [path.name for path in tmp_path.iterdir()] == ["line.png"]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="pip install 'matplotlib>=3.9'"):
        load_matplotlib()
    with pytest.raises(InputError, match="pip install"):
        draw_line()


def test_the_users_settings_neither_change_a_picture_nor_are_changed(tmp_path):
    usual = write_figure(draw_line(), tmp_path / "usual.svg").read_bytes()
    with matplotlib.rc_context({"lines.linewidth": 9.0, "font.size": 30.0}):
        changed = write_figure(draw_line(), tmp_path / "changed.svg").read_bytes()
        assert matplotlib.rcParams["lines.linewidth"] == 9.0
        assert matplotlib.rcParams["font.size"] == 30.0
    assert changed == usual


def test_no_display_and_no_pyplot_is_needed(tmp_path):
    code = (
        "import sys; from jaxformer.visualization import attention_figure, write_figure\n"
        "write_figure(attention_figure([[[1.0]]], ['a'], ['b']), sys.argv[1])\n"
        "print(sorted({'matplotlib.pyplot', 'tkinter', 'jax'} & set(sys.modules)))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.png")],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr


def test_a_notebook_shows_a_figure_as_png():
    assert draw_line()._repr_png_().startswith(b"\x89PNG\r\n")


def test_lines_are_told_apart_by_more_than_colour():
    assert len(set(COLOURS)) == len(COLOURS) == len(MARKERS) == len(set(MARKERS))
    assert len(set(LINE_STYLES)) == len(LINE_STYLES)
