"""The training benchmark: the jaxformer side trains, and the printed numbers are right."""

import importlib.util
from pathlib import Path

import pytest

from jaxformer.model_config import TransformerConfig

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("train_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_shapes_are_the_presets(benchmark, name):
    shape = benchmark.SHAPES[name]
    config = benchmark.model_config(shape)
    preset = TransformerConfig.preset(name, vocab_size=shape.vocab_size)
    for field in ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads"):
        assert getattr(config, field) == getattr(preset, field)
    assert config.norm == "post" and config.tie_embeddings


def test_jaxformer_side_trains(benchmark):
    trainer = benchmark.prepare_jaxformer(benchmark.Shape(1, 16, 32, 2, 40, 8, 4))
    # 40 x 16 embeddings, three attentions, two feed-forwards, five norms
    assert trainer.parameters == 640 + 3 * 4 * (16**2 + 16) + 2 * (2 * 16 * 32 + 48) + 5 * 32
    losses = [trainer.run(1), trainer.run(1)]
    assert 3.0 < losses[1] < 6.0 and losses[0] != losses[1]


def test_step_flops_of_one_multiply_add_each(benchmark):
    # A token: 3 attentions of 4 + 2, two feed-forwards of 2, logits of 1; 2 operations, 3 passes.
    assert benchmark.step_flops(benchmark.Shape(1, 1, 1, 1, 1, 5, 1)) == 5 * 6 * (18 + 4 + 1)


def test_speed_table_takes_medians(benchmark):
    seconds = {"jaxformer": [1.0, 2.0, 4.0], "pytorch": [3.0, 3.0, 4.0]}
    table = benchmark.speed_table({"tiny": benchmark.Measurement({}, seconds)})
    row = [cell.strip() for cell in table.split("\n")[-1].strip("|").split("|")]
    assert row[:3] == ["tiny", "128 x 32", "2,048"]
    assert row[4] == "1,365"
    assert row[-1] == "1.50 [1.00, 3.00]"


def test_without_pytorch_one_line_names_the_repair(benchmark, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda name: None)
    assert benchmark.main(["--shapes", "tiny"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "pip install torch" in message
