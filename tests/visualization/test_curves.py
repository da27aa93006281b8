"""Training curves: what is read from metrics.jsonl, and what is drawn of it."""

import json
import re

import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.visualization.curves import curves_figure, read_metrics, run_names, series

ROWS = [
    {"step": 10, "split": "train", "loss": 4.0, "learning_rate": 1e-3,
     "target_tokens_per_second": 900.0},
    {"step": 20, "split": "train", "loss": 3.0, "learning_rate": 2e-3,
     "target_tokens_per_second": 1100.0},
    {"step": 20, "split": "validation", "loss": 3.5, "bleu": 12.5, "bleu_signature": "nrefs:1"},
    {"step": 20, "split": "test", "loss": 3.6, "bleu": 11.0},
]  # fmt: skip


def write_run(folder, rows=ROWS, end="\n"):
    folder.mkdir(parents=True)
    text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    (folder / "metrics.jsonl").write_bytes(text.encode() + end.encode())
    return folder


def lines_of(axis):
    return [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axis.lines]


def test_rows_are_read_in_order(tmp_path):
    assert read_metrics(write_run(tmp_path / "run")) == ROWS


def test_a_line_that_is_still_being_written_is_left_out(tmp_path):
    rows = [*ROWS, '{"step": 30, "spl']
    assert read_metrics(write_run(tmp_path / "run", rows, end="")) == ROWS


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step": 30, "spl', "line 2"),
        ("[1, 2]", "line 2"),
        ('{"step": 30}', "line 2.*'split'"),
        ('{"step": "30", "split": "train"}', "line 2.*step .*whole number"),
        ('{"step": 30, "split": "\udcff"}', "line 2"),
    ],
)
def test_a_damaged_line_is_named_and_left_out(tmp_path, line, reason, capsys):
    run = tmp_path / "run"
    run.mkdir()
    lines = [json.dumps(ROWS[0]).encode(), line.encode("utf-8", "surrogateescape")]
    lines += [b"\0\0" + json.dumps(ROWS[1]).encode(), b""]
    (run / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert read_metrics(run) == ROWS[:2]
    assert re.search(reason, capsys.readouterr().err)


def test_folders_that_are_no_runs_are_refused(tmp_path):
    with pytest.raises(InputError, match=f"--workdir={tmp_path}/nowhere: "):
        read_metrics(tmp_path / "nowhere")
    with pytest.raises(InputError, match=f"{tmp_path} .*metrics.jsonl"):
        read_metrics(tmp_path)
    resumed = {"step": 0, "split": "resume", "changed": "seed"}
    with pytest.raises(InputError, match=f"{tmp_path}/new/metrics.jsonl "):
        read_metrics(write_run(tmp_path / "new", [resumed]))


def test_series_are_by_step_and_the_last_one_counts():
    rows = [
        {"step": 20, "split": "train", "loss": 5.0},
        {"step": 10, "split": "train", "loss": 6.0},
        {"step": 20, "split": "train", "loss": 4.0},
        {"step": 30, "split": "train", "loss": float("nan")},
        {"step": 40, "split": "train"},
        {"step": 15, "split": "validation", "loss": 9.0},
    ]
    steps, values = series(rows, "loss", "train")
    assert steps.tolist() == [10, 20] and values.tolist() == [6.0, 4.0]
    assert [len(array) for array in series(rows, "bleu", "train")] == [0, 0]


def test_runs_are_named_by_the_shortest_ends_that_differ(tmp_path):
    assert run_names(["runs/pocket/"]) == ["pocket"]
    assert run_names([tmp_path / "a/one", tmp_path / "b/two"]) == ["one", "two"]
    assert run_names([tmp_path / "a/one", tmp_path / "b/one"]) == ["a/one", "b/one"]
    with pytest.raises(InputError, match=f"twice: {tmp_path}, {tmp_path}"):
        run_names([tmp_path, tmp_path / "." / ""])


def test_four_panels_hold_the_figures_of_a_run(tmp_path):
    figure = curves_figure([write_run(tmp_path / "run")])
    loss, bleu, rate, speed = figure.axes
    assert lines_of(loss) == [([10, 20], [4.0, 3.0]), ([20], [3.5])]
    assert lines_of(bleu) == [([20], [12.5])]
    assert lines_of(rate) == [([10, 20], [0.001, 0.002])]
    assert lines_of(speed) == [([10, 20], [900.0, 1100.0])]
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == [
        "Loss (nats a target token)", "BLEU on validation", "Learning rate",
        "Speed (target tokens/s)",
    ]  # fmt: skip
    assert speed.get_ylim()[0] == 0.0 and speed.get_ylim()[1] > 1100.0


def test_several_runs_have_each_a_colour_and_a_mark_in_the_legend(tmp_path):
    other = [{**row, "loss": row["loss"] + 1.0} for row in ROWS]
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", other)]
    figure = curves_figure(runs)
    loss = figure.axes[0]
    assert lines_of(loss)[2:] == [([10, 20], [5.0, 4.0]), ([20], [4.5])]
    legend = figure.legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["one", "two", "training", "validation"]
    first, second = legend.get_lines()[:2]
    assert first.get_color() == loss.lines[0].get_color() != second.get_color()
    assert second.get_color() == loss.lines[2].get_color()
    assert first.get_marker() != second.get_marker()


def test_rollbacks_are_marked_on_the_loss(tmp_path):
    rows = [*ROWS, {"step": 15, "split": "rollback", "loss": 40.0, "checkpoint": 10}]
    figure = curves_figure([write_run(tmp_path / "run", rows)])
    np.testing.assert_array_equal(figure.axes[0].lines[-1].get_xdata(), [15, 15])
    assert figure.legends[0].get_texts()[-1].get_text() == "rollback"
    assert len(figure.axes[1].lines) == 1


def test_a_figure_that_no_run_logged_is_said_to_be_missing(tmp_path):
    figure = curves_figure([write_run(tmp_path / "run", ROWS[:2])])
    assert [text.get_text() for text in figure.axes[1].texts] == ["not logged by these runs"]
    assert not figure.axes[0].texts


def test_a_trained_run_is_drawn(small_run):
    figure = curves_figure([small_run.workdir])
    updates, losses = lines_of(figure.axes[0])[0]
    assert updates == [20, 40, 60, 80, 100, 120] and losses[0] > losses[-1] > 0.0
    assert lines_of(figure.axes[1])[0][0] == [40, 80, 120]
