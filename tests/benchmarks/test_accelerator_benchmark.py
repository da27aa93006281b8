"""The benchmark of accelerators, on what is here: it trains, and refuses what cannot be done."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxformer.models.flops import forward_flops

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("accelerator", BENCHMARKS / "accelerator.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "accelerator", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VOCAB_SIZE", 200)
    monkeypatch.setattr("jaxformer.runtime.backend.configure_backend", lambda: None)
    return module


def test_lengths_are_those_of_a_bucket(benchmark):
    batch = benchmark.draw_batch(500, 32)
    for name, lengths in (("inputs", batch.source_lengths), ("targets", batch.target_lengths)):
        real = batch.arrays[name] != benchmark.PAD_ID
        np.testing.assert_array_equal(real.sum(axis=1), lengths)
        assert real[:, :17].all() and real.any(axis=0).all()
        assert lengths.min() == 17 and lengths.max() == 32


def test_the_table(benchmark, capsys):
    arguments = "--models tiny --tokens 128 --lengths 8 --rounds 2 --steps 1 --dtype float32"
    assert benchmark.main([*arguments.split(), "--attention", "auto", "xla", "cudnn"]) == 0
    lines = capsys.readouterr().out.split("\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:] if line]
    names = [row[0] for row in rows]
    assert names == ["tiny, 16 x 8, auto: reference", "tiny, 16 x 8, xla", "tiny, 16 x 8, cudnn"]
    assert rows[2][1].startswith("model.attention_implementation='cudnn' cannot be used: cuDNN")
    batch = benchmark.draw_batch(16, 8)
    model = benchmark.TransformerConfig.preset("tiny", vocab_size=200)
    flops = 3.0 * forward_flops(model, batch.source_lengths, batch.target_lengths).total
    for row in rows[:2]:
        seconds = float(row[1].split(" ")[0].replace(",", "")) / 1e3
        speed, padded, teraflops = (float(cell.replace(",", "")) for cell in row[2:5])
        assert speed == pytest.approx(batch.target_lengths.sum() / seconds, rel=0.02)
        assert padded == pytest.approx(128 / seconds, rel=0.02)
        assert teraflops == pytest.approx(flops / seconds / 1e12, abs=0.0051)
        assert row[5] == "-"  # the peak of a CPU is not published
