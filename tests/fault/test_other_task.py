"""A task that jaxformer does not know survives SIGKILL as translation does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import regression_task

from jaxformer.tasks.open_run import open_run

pytestmark = pytest.mark.fault
SCRIPT = Path(__file__).parents[1] / "regression_task.py"


def start(workdir, kill_at):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, SCRIPT.parents[:2]))}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "train", str(workdir), str(kill_at)],
        capture_output=True, text=True, env=environment, timeout=300,
    )  # fmt: skip


@pytest.fixture
def registered():
    with regression_task.registered():
        yield


def parameters(workdir):
    return open_run(workdir, "60").params["line"]


def test_two_kills_change_nothing(tmp_path, registered):
    whole = start(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    for kill_at in (17, 26):  # steps of a start: within an interval, and after an evaluation
        killed = start(tmp_path / "killed", kill_at)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    last = start(tmp_path / "killed", 0)
    assert last.returncode == 0 and "resuming from the checkpoint of step" in last.stdout
    one, other = parameters(tmp_path / "whole"), parameters(tmp_path / "killed")
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])
