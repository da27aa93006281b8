"""The start-up benchmark books all time that passes, each second once."""

import importlib.util
import types
from pathlib import Path

import pytest
from training_run import write_config_file, write_corpus

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "startup.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("startup_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stages_add_up_to_the_time_passed(benchmark, monkeypatch):
    now = [100.0]

    def sleep(seconds):
        now[0] += seconds
        return seconds

    monkeypatch.setattr(benchmark.time, "time", lambda: now[0])
    watch = benchmark.Stopwatch(98.0)
    watch.lap("imports")
    module = types.SimpleNamespace(prepare=sleep)
    watch.watch(module, "prepare", "corpus")
    sleep(1.0)
    assert module.prepare(4.0) == 4.0
    assert module.prepare(8.0) == 8.0
    sleep(16.0)
    watch.lap("first step")
    expected = {"imports": 2.0, "set-up": 1.0, "corpus": 12.0, "first step": 16.0}
    assert {stage: s for stage, s in watch.seconds.items() if s} == expected
    assert set(expected) < set(benchmark.STAGES)


def test_a_start_ends_at_its_first_step(benchmark, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # for the config file
    corpus = write_corpus(tmp_path / "corpus")
    config = write_config_file(tmp_path / "config.py", corpus, tmp_path / "cache")
    seconds = benchmark.measure(str(config), tmp_path, "cold")
    assert list(seconds) == list(benchmark.STAGES)
    assert all(seconds[stage] > 0.0 for stage in benchmark.STAGES)
    assert not list((tmp_path / "cold" / "checkpoints").iterdir())


def test_the_table_has_both_starts(benchmark, monkeypatch, capsys):
    seconds = {"cold": 4.0, "warm": 0.5}
    monkeypatch.setattr(
        benchmark, "measure", lambda *a: dict.fromkeys(benchmark.STAGES, seconds[a[-1]])
    )
    benchmark.main("config.py")
    lines = capsys.readouterr().out.split("\n")
    assert lines[0].split() == ["seconds", "cold", "warm"]
    assert lines[1].split() == ["imports", "4.0", "0.5"]
    assert lines[-2].split() == ["total", "28.0", "3.5"]
