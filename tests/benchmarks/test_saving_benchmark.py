"""The benchmark of saving: both kinds of intervals are timed, and the shares are right."""

import importlib.util
import sys
from pathlib import Path

import pytest

from jaxformer.storage.checkpoint import list_steps

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def saving(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("saving_benchmark", BENCHMARKS / "saving.py")
    module = sys.modules["saving_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_other_interval_begins_with_a_save(saving, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.runtime.backend.configure_backend", lambda: None)
    shape = type(saving.SHAPES["tiny"])(1, 16, 32, 2, 40, 8, 4)
    without, with_save, blocking, size = saving.measure(shape, tmp_path, 3, 2)
    assert len(without) == len(with_save) == len(blocking) == 2
    assert all(0 < part < whole for part, whole in zip(blocking, with_save, strict=True))
    assert 3 * 4 * 5_000 < size < 3 * 4 * 8_000  # parameters and two moments
    assert list_steps(tmp_path) == [2, 4]  # the newest two


def test_the_table(saving):
    table = saving.report("base", 100, [90.0, 100.0, 110.0], [104.0, 102.0], [2.0], 3 << 20)
    assert table.splitlines()[-1] == (
        "| base | 3 MiB | 100.0 s | 103.0 s | 1.030 | 2.00 s | 1.94% |"
    )
