"""The watchdog bites a process that stands still, and no other."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from jaxformer.training.guards.watchdog import EXIT_STATUS, PAUSE_FLOORS, Watchdog

HANGING = """
import sys, threading, time
from pathlib import Path
from jaxformer.training.guards.watchdog import Watchdog

def reading_the_device():
    time.sleep(60)

with Watchdog(Path(sys.argv[1]), floor=0.3) as watchdog:
    watchdog.start(5)
    watchdog.step_done(6)
    reading_the_device()
"""


def run_python(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("folder", ["", "gone"])
def test_a_process_that_stands_still_ends_with_its_stacks(tmp_path, folder):
    stacks = tmp_path / folder / "stacks.txt"
    ended = run_python(HANGING, stacks)
    assert ended.returncode == EXIT_STATUS == 70
    first, rest = ended.stderr.split("\n", 1)
    assert first.startswith("error: no sign of life for 0.3 s") and "step 6, while tra" in first
    assert f" {stacks};" in first and "the same command" in first
    assert "in reading_the_device" in rest
    assert stacks.exists() == (not folder)
    if not folder:
        text = stacks.read_text()
        assert first in text and "in reading_the_device" in text
        assert run_python(HANGING, stacks).returncode == 70
        assert stacks.read_text().count("no sign of life") == 2  # the first one is kept


@pytest.fixture
def ended(monkeypatch):
    """The calls of `os._exit`, which does nothing."""
    calls = []
    monkeypatch.setattr(os, "_exit", calls.append)
    return calls


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_steps_pauses_and_signs_of_life_keep_it_quiet(ended, tmp_path):
    with Watchdog(tmp_path / "stacks.txt", floor=0.5) as watchdog:
        time.sleep(0.8)  # before the start it does not watch
        watchdog.start(0)
        for step in range(1, 8):
            time.sleep(0.1)
            watchdog.step_done(step)
        with watchdog.pause("saving"):
            time.sleep(0.8)
        for _ in range(7):
            time.sleep(0.1)
            watchdog.alive()
    assert ended == [] and not (tmp_path / "stacks.txt").exists()
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


@pytest.mark.parametrize("station", ["training", "evaluating"])
def test_it_bites_in_a_step_and_in_a_pause(ended, tmp_path, capfd, station, monkeypatch):
    monkeypatch.setattr("jaxformer.training.guards.watchdog.PAUSE_FLOORS", 2.0)
    with Watchdog(tmp_path / "stacks.txt", floor=0.2) as watchdog:
        watchdog.start(3)
        if station == "training":
            assert wait_for(lambda: ended)
        else:
            with watchdog.pause(station):
                assert watchdog.limit() == 0.4
                assert wait_for(lambda: ended)
    assert set(ended) == {70}
    assert f"after step 3, while {station}" in capfd.readouterr().err


def test_the_limit_follows_the_median_step_and_pauses_are_no_steps(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("jaxformer.training.guards.watchdog.time.monotonic", lambda: now[0])
    watchdog = Watchdog(tmp_path / "stacks.txt", floor=300.0)
    watchdog.start(0)
    assert watchdog.limit() == 300.0
    for step in range(1, 4):
        now[0] += 50.0
        watchdog.step_done(step)
    now[0] += 7.0  # of one step
    with watchdog.pause("saving"):
        assert watchdog.limit() == PAUSE_FLOORS * 300.0 == 3600.0
        with watchdog.pause("writing"):
            now[0] += 1000.0
        assert watchdog.limit() == 3600.0
    now[0] += 7.0
    watchdog.step_done(4)
    assert watchdog.limit() == 10 * 50.0  # of 50, 50, 50 and 7
    for step in range(5, 106):
        now[0] += 1.0
        watchdog.step_done(step)
    assert watchdog.limit() == 300.0


def test_each_new_shape_of_batches_may_compile(tmp_path):
    watchdog = Watchdog(tmp_path / "stacks.txt", floor=1.0)
    watchdog.start(0)
    limits = []
    for length in (8, 16, 8, 16, 24):
        with watchdog.dispatch({"inputs": np.zeros((2, length)), "targets": np.zeros((2, 4))}):
            limits.append(watchdog.limit())
    assert limits == [12.0, 12.0, 1.0, 1.0, 12.0]


def test_no_floor_no_watchdog(ended, tmp_path):
    with Watchdog(tmp_path / "stacks.txt", floor=0.0) as watchdog:
        watchdog.start(1)
        assert not any(thread.name == "watchdog" for thread in threading.enumerate())
        time.sleep(0.1)
    assert ended == []
