"""Sums, metrics.jsonl over several starts, and the progress line."""

import errno
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
        "skipped": jnp.float32(0.0),
    }


def totals(loss, tokens, steps):
    return {"loss": loss, "tokens": tokens, "gradient_norm": 0.5 * steps, "skipped": 0.0}


def ignore(step, values):
    """Of a step that is read, nothing."""


def test_an_interval_comes_two_steps_after_its_end_with_its_own_sums():
    read = []
    sums = IntervalSums(lambda step: step % 3 == 0, lambda step, v: read.append((step, v["loss"])))
    returned = [sums.add(step, sums_of(loss)) for step, loss in enumerate([1, 2, 4, 8, 16], 1)]
    assert returned[:4] == [None] * 4
    assert returned[4] == Interval(3, 3, totals(7.0, 30.0, 3))
    assert read == [(1, 1.0), (2, 2.0), (3, 4.0)]
    sums.add(6, sums_of(32))
    assert list(sums.flush()) == [Interval(6, 3, totals(56.0, 30.0, 3))]
    assert read[3:] == [(4, 8.0), (5, 16.0), (6, 32.0)] and list(sums.flush()) == []


def test_flushing_within_an_interval_loses_nothing():
    sums = IntervalSums(lambda step: step == 4, ignore)
    for step in (1, 2, 3):
        sums.add(step, sums_of(step))
        assert list(sums.flush()) == []
    sums.add(4, sums_of(4))
    assert list(sums.flush()) == [Interval(4, 4, totals(10.0, 40.0, 4))]


def test_a_skipped_step_counts_and_adds_nothing_else_but_its_learning_rate():
    sums = IntervalSums(lambda step: step == 3, ignore)
    nothing = {"loss": jnp.float32("nan"), "skipped": jnp.float32(1.0)}
    sums.add(1, sums_of(1))
    sums.add(2, sums_of(2) | nothing)
    sums.add(3, sums_of(4) | nothing | {"learning_rate": jnp.float32(0.25)})
    (interval,) = sums.flush()
    assert interval == Interval(
        3, 3, totals(1.0, 10.0, 1) | {"skipped": 2.0, "learning_rate": 0.25}
    )


def test_discarded_steps_are_as_if_they_had_never_been_dispatched():
    sums = IntervalSums(lambda step: step % 2 == 0, ignore)
    assert [sums.add(step, sums_of(step)) for step in (1, 2, 3)] == [None] * 3
    assert sums.add(4, sums_of(64)) == Interval(2, 2, totals(3.0, 20.0, 2))
    assert sums.discard() == 2 and sums.discard() == 0
    sums.add(3, sums_of(4))
    sums.add(4, sums_of(8))
    assert list(sums.flush()) == [Interval(4, 2, totals(12.0, 20.0, 2))]


def test_many_float32_sums_do_not_lose_the_small_ones():
    sums = IntervalSums(lambda step: step == 4, ignore)
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
    rows = [
        (2, "train"), (4, "train"), (4, "skipped"), (4, "validation"), (4, "test"),
        (4, "compositional"), (5, "skipped"), (6, "train"),
    ]  # fmt: skip
    path.write_text("".join(json.dumps({"step": s, "split": n}) + "\n" for s, n in rows))
    writer = MetricsWriter(path, 4)
    kept = [(2, "train"), (4, "train"), (4, "skipped"), (4, "validation")]
    assert read(path) == kept
    writer.write(6, "train", {"loss": 1.0})
    writer.close()
    assert read(path) == [*kept, (6, "train")]


def test_a_line_cut_short_by_a_crash_does_not_stop_the_next_start(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2, "split": "train"}\n{"step": 4, "spl')
    MetricsWriter(path, 4).close()
    assert read(path) == [(2, "train")]


class ScarceFile:
    """A file on a disk with room for so many bytes."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, content):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.file.write(content[: self.room])
        self.room -= written
        return written

    def close(self):
        self.file.close()


def test_lines_that_a_full_disk_does_not_take_are_kept_until_it_does(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path, 0)
    writer._file = disk = ScarceFile(writer._file, 50)
    for step in (1, 2, 3):
        writer.write(step, "train", {"loss": 1.5})
    assert len(path.read_bytes()) == 50  # the second line is cut short
    disk.room = 1000
    writer.write(4, "train", {"loss": 1.5})
    assert read(path) == [(1, "train"), (2, "train"), (3, "train"), (4, "train")]
    disk.room = 0
    writer.write(5, "train", {"loss": 2.5})
    writer.close()
    said = capsys.readouterr().out
    assert said.count(f"{path} cannot be written (No space left on device)") == 2
    assert said.endswith(
        f'NOT written to {path}:\n{{"step": 5, "split": "train", "loss": 2.5}}\n\n'
    )


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
        "step 400/1,000  loss 2.500  lr 3.00e-04  12,345 target tokens/s  5:00 left\n"
    )


def test_an_interval_of_skipped_updates_has_no_loss_to_show(capsys):
    progress = Progress(0, 1000)
    progress.show(400, {"learning_rate": 3e-4, "target_tokens_per_second": 0.0}, 0.5)
    assert capsys.readouterr().out == (
        "step 400/1,000  all updates skipped  lr 3.00e-04  0 target tokens/s  5:00 left\n"
    )


def test_steps_that_are_done_again_are_taken_back_from_the_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress(10, 1000)
    for _ in range(5):
        progress.advance()
    progress.rewind(2)
    assert progress._bar.n == 13
    progress.close()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59.4, "0:59"), (59.5, "1:00"), (3599, "59:59"), (3723, "1:02:03")],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
