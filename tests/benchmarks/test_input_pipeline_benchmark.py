"""The benchmark of the input pipeline delivers its batches and counts the pairs in them."""

import importlib.util
import sys
from pathlib import Path

import pytest
from training_run import write_corpus

from jaxformer.config import DataConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location(
        "input_pipeline", BENCHMARKS / "input_pipeline.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "input_pipeline", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "WORKERS", (0, 1))
    return module


def number(text):
    return float(text.partition(" ")[0].replace(",", ""))


def test_each_table_has_its_speeds(benchmark, tmp_path):
    config = DataConfig(
        source="text",
        root=str(write_corpus(tmp_path / "corpus")),
        max_length=32,
        tokens_per_batch=512,
        cache_dir=str(tmp_path / "cache"),
    )
    stored = benchmark.measure_corpus("numbers", config, 350)
    assert [row["corpus, batching"] for row in stored] == ["numbers, buckets", "numbers, packed"]
    sampled = benchmark.measure_sampling("numbers", config, 350, 0.2)
    assert [row["in"] for row in sampled] == ["a thread", "1 worker"]
    for row in stored + sampled:
        assert row["pairs"] == "400"
        assert number(row["BatchLoader, pairs/s"]) > 1.0
    assert all(number(row["make_batch, pairs/s"]) > 1.0 for row in stored)


def test_a_simulated_corpus_is_measured_in_a_process_of_its_own(benchmark, tmp_path):
    rows = benchmark.measure_simulated(20_000, tmp_path, steps=20)
    assert [row["pairs, batching"] for row in rows] == ["20,000, buckets", "20,000, packed"]
    assert all(number(row["pairs/s"]) > 1.0 for row in rows)
    assert not list(tmp_path.iterdir())
