"""Sums, metrics.jsonl over several starts, and the progress line."""

import json

import jax.numpy as jnp
import pytest

from jaxformer.training.metrics import (
    Interval,
    IntervalSums,
    MetricsWriter,
    Progress,
    format_seconds,
)


def read(path):
    return [
        (row["step"], row["split"]) for row in map(json.loads, path.read_text().split("\n")[:-1])
    ]


def sums_of(loss, tokens=10.0):
    return {
        "loss": jnp.float32(loss),
        "tokens": jnp.float32(tokens),
        "gradient_norm": jnp.float32(0.5),
    }


def totals(loss, tokens, steps):
    return {"loss": loss, "tokens": tokens, "gradient_norm": 0.5 * steps}


def test_an_interval_comes_two_steps_after_its_end_with_its_own_sums():
    sums = IntervalSums(lambda step: step % 3 == 0)
    returned = [sums.add(step, sums_of(loss)) for step, loss in enumerate([1, 2, 4, 8, 16], 1)]
    assert returned[:4] == [None] * 4
    assert returned[4] == Interval(3, 3, totals(7.0, 30.0, 3))
    assert sums.loss == 4.0
    sums.add(6, sums_of(32))
    assert list(sums.flush()) == [Interval(6, 3, totals(56.0, 30.0, 3))]
    assert (sums.loss, sums.gradient_norm) == (32.0, 0.5) and list(sums.flush()) == []


def test_flushing_within_an_interval_loses_nothing():
    sums = IntervalSums(lambda step: step == 4)
    for step in (1, 2, 3):
        sums.add(step, sums_of(step))
        assert list(sums.flush()) == []
    sums.add(4, sums_of(4))
    assert list(sums.flush()) == [Interval(4, 4, totals(10.0, 40.0, 4))]


def test_many_float32_sums_do_not_lose_the_small_ones():
    sums = IntervalSums(lambda step: step == 4)
    for step, value in enumerate((2.0**24, 1.0, 1.0, 1.0), 1):
        sums.add(step, sums_of(0.0, tokens=value))
    assert next(sums.flush()).sums["tokens"] == 2.0**24 + 3


def test_lines_are_complete_json_objects(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl", 0)
    writer.write(5, "train", {"loss": 1.25, "note": "é"})
    line = (tmp_path / "metrics.jsonl").read_text("utf-8")
    assert json.loads(line) == {"step": 5, "split": "train", "loss": 1.25, "note": "é"}
    assert line.endswith("}\n")
    writer.close()
    assert [p.name[:6] for p in (tmp_path / "tensorboard").iterdir()] == ["events"]


def test_what_a_resumed_run_writes_again_is_removed_first(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [(2, "train"), (4, "train"), (4, "validation"), (4, "test"), (6, "train")]
    path.write_text("".join(json.dumps({"step": s, "split": n}) + "\n" for s, n in rows))
    writer = MetricsWriter(path, 4)
    assert read(path) == [(2, "train"), (4, "train"), (4, "validation")]
    writer.write(6, "train", {"loss": 1.0})
    writer.close()
    assert read(path) == [(2, "train"), (4, "train"), (4, "validation"), (6, "train")]


def test_a_line_cut_short_by_a_crash_does_not_stop_the_next_start(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "split": "train"}\n{"step": 4, "spl')
    MetricsWriter(path, 4).close()
    assert read(path) == [(2, "train")]


def test_the_clock_of_the_speed_stands_still_while_paused(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("jaxformer.training.metrics.time.monotonic", lambda: now[0])
    progress = Progress(0, 10)
    now[0] += 3.0
    progress.pause()
    now[0] += 50.0
    progress.unpause()
    now[0] += 1.0
    assert progress.interval() == pytest.approx(4.0)
    now[0] += 0.5
    assert progress.interval() == pytest.approx(0.5)
    progress.close()


def test_progress_prints_one_line_where_there_is_no_terminal(capsys):
    progress = Progress(0, 1000)
    values = {"loss": 2.5, "learning_rate": 3e-4, "target_tokens_per_second": 12345.0}
    progress.show(400, values, 0.5)
    progress.close()
    assert capsys.readouterr().out == (
        "step 400/1,000  loss 2.500  lr 3.00e-04  12,345 target tok/s  5:00 left\n"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.5, "1:00"), (3599, "59:59"), (3723, "1:02:03")],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
