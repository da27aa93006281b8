"""A run that stands still is ended with its stacks, and the same command goes on."""

import pytest

pytestmark = pytest.mark.fault

HANG = """
import itertools, time
from jaxformer.training import prefetch

count, take = itertools.count(1), prefetch.DeviceBatches.take

def take_or_hang(batches):
    if next(count) == 13:
        time.sleep(3600)
    return take(batches)

prefetch.DeviceBatches.take = take_or_hang
"""


def test_a_run_that_hangs_ends_with_70_and_goes_on(soak, tiny_run, patched, tmp_path):
    workdir = tmp_path / "run"
    hung = tiny_run.start(workdir, "--config.training.watchdog_seconds=5", program=patched(HANG))
    hung.finish(70)
    (line,) = [line for line in hung.lines if line.startswith("error: ")]
    assert "no sign of life" in line and "step 12, while training" in line
    assert str(workdir / "stacks.txt") in line and "the same command" in line
    assert "in take_or_hang" in hung.output
    assert "in take_or_hang" in (workdir / "stacks.txt").read_text()
    again = tiny_run.start(workdir)
    again.finish(0)
    assert again.resumed == 10
    assert soak.digest(workdir) == tiny_run.digest
