"""The training benchmark: the jaxformer side trains, and the printed numbers are right."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest
from training_run import change

from jaxformer.model_config import TransformerConfig
from jaxformer.training.setup import prepare_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def part():
    """Imports a module of benchmarks/training_speed, as benchmarks/train.py sees it."""
    sys.path.insert(0, str(BENCHMARKS))
    yield lambda name: importlib.import_module(f"training_speed.{name}")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def command(part):
    spec = importlib.util.spec_from_file_location("train_benchmark", BENCHMARKS / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_shapes_are_the_presets(part, name):
    shape = part("shapes").SHAPES[name]
    config = part("jaxformer_trainer").model_config(shape)
    preset = TransformerConfig.preset(name, vocab_size=shape.vocab_size)
    for field in ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads"):
        assert getattr(config, field) == getattr(preset, field)
    assert config.norm == "post" and config.tie_embeddings


def test_jaxformer_side_trains(part, monkeypatch):
    trainer_module = part("jaxformer_trainer")
    monkeypatch.setattr("jaxformer.runtime.backend.configure_backend", lambda: None)
    trainer = trainer_module.prepare_jaxformer(part("shapes").Shape(1, 16, 32, 2, 40, 8, 4))
    # 40 x 16 embeddings, three attentions, two feed-forwards, five norms
    assert trainer.parameters == 640 + 3 * 4 * (16**2 + 16) + 2 * (2 * 16 * 32 + 48) + 5 * 32
    losses = [trainer.run(1), trainer.run(1)]
    assert 3.0 < losses[1] < 6.0 and losses[0] != losses[1]


def test_batches_from_the_loader_and_held_ones_train(part, small_run, one_device, tmp_path):
    prepared = prepare_run(change(small_run.config, training__num_steps=8), tmp_path)
    real = part("real_batches").RealBatches(prepared)
    held = real.next_on_device(2)
    seconds = part("real_batches").measure_rounds(real, rounds=2, steps=2)
    real.loader.close()
    assert all(len(values) == 2 and min(values) > 0.0 for values in seconds.values())
    assert real.step == 4 and real.fetching > 0.0
    # 2 to compile the shape, and in each round 2 from each of three sources
    assert len(held) == 2 and int(real.state.step) == 2 + 2 * 2 * 3


def test_step_flops_of_one_multiply_add_each(part):
    # A token: 3 attentions of 4 + 2, two feed-forwards of 2, logits of 1; 2 operations, 3 passes.
    shapes = part("shapes")
    assert shapes.step_flops(shapes.Shape(1, 1, 1, 1, 1, 5, 1)) == 5 * 6 * (18 + 4 + 1)


def test_tables_take_medians_and_the_better_of_eager_and_compiled(part):
    report, workers = part("report"), part("workers")
    measured = {
        "tiny": workers.Measurement(
            facts={},
            seconds={
                workers.OURS: [1.0, 2.0, 4.0],
                workers.EAGER: [3.0, 3.0, 4.0],
                workers.COMPILED: [2.0, 2.0, 5.0],
            },
            faults={},
            peaks={workers.OURS: [200e9, 250e9], workers.EAGER: [150e9]},
        )
    }
    rows = [line.strip("| ").split(" | ") for line in report.speed_table(measured).split("\n")[2:]]
    assert rows[0][:3] == ["tiny, jaxformer", "128 x 32", "2,048 [1,024, 4,096]"]
    flops = part("shapes").step_flops(part("shapes").SHAPES["tiny"])
    assert rows[0][3:] == [f"{flops / 2e9:.1f}", f"{flops / 2 / 250e9:.0%}", "1"]
    assert rows[1][-1] == "1.50 [1.00, 3.00]"
    summary = report.summary_table(measured).split("\n")[-1].strip("| ").split(" | ")
    assert summary == ["tiny", "1.25 [1.00, 2.00]", "PyTorch compiled", "250.0", "150.0"]


def test_questions_exclude_each_other(command, capsys):
    for arguments in (["--where", "--memory"], ["--input-pipeline"], ["--rounds=0"]):
        with pytest.raises(SystemExit, match="2"):
            command.parse_arguments(arguments)
    assert "--input-pipeline and --root=DIR go together" in capsys.readouterr().err


def test_without_pytorch_one_line_names_the_repair(command, monkeypatch, capsys):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert command.main(["--shapes", "tiny"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "pip install torch" in message
