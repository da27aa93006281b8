"""The contract of a task: one that jaxformer does not know is trained, kept and planned."""

import argparse
import dataclasses
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from regression_task import Regression, RegressionConfig, registered, regression_config
from training_run import change, read_metrics

import jaxformer
from jaxformer.__main__ import main
from jaxformer.commands.plan import plan_search
from jaxformer.commands.plan_tables import format_plan
from jaxformer.config import Config, DataConfig
from jaxformer.errors import InputError
from jaxformer.planning.step_plan import plan_evaluation, plan_run, plan_step
from jaxformer.tasks.open_run import open_run
from jaxformer.tasks.registry import TASKS
from jaxformer.training.checks import memory
from jaxformer.training.checks.attention_check import check_attention
from jaxformer.training.loop import train
from jaxformer.training.setup import prepare_run

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module", autouse=True)
def task():
    with registered():
        yield


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, compiled_programs):
    folder = tmp_path_factory.mktemp("regression") / "run"
    result = train(regression_config(), folder)
    assert result.exit_status == 0 and result.step == 60
    assert set(result.evaluations) == {"test"}
    return folder


def slope(workdir, checkpoint="latest"):
    return np.asarray(open_run(workdir, checkpoint).params["line"]["slope"])


def test_it_learns_on_a_mesh_and_its_figures_are_kept(workdir):
    np.testing.assert_allclose(slope(workdir), np.ones(4), atol=0.1)
    losses = [row["loss"] for row in read_metrics(workdir, "validation")]
    assert len(losses) == 3 and losses[-1] < 0.05 < losses[0]
    (row,) = read_metrics(workdir, "test")
    assert row["loss"] < 0.05
    figures = read_metrics(workdir, "train")[-1]
    assert figures["examples_per_second"] > 0 and "model_flops_per_second" not in figures


def test_a_resumed_run_is_bit_identical(workdir, tmp_path):
    train(regression_config(num_steps=30), tmp_path)
    train(regression_config(), tmp_path)
    np.testing.assert_array_equal(slope(tmp_path), slope(workdir))


def test_the_commands_take_it(workdir, capsys):
    assert main(["average", f"--workdir={workdir}", "--last=2"]) == 0
    both = [slope(workdir, step) for step in ("50", "60")]
    mean = np.mean(both, axis=0, dtype=np.float64)
    np.testing.assert_allclose(slope(workdir, "average_last_2"), mean, rtol=1e-6)
    assert main(["verify", f"--workdir={workdir}"]) == 0
    capsys.readouterr()
    flags = [f"--workdir={workdir}", "--split=validation", "--format=json", "--checkpoint=60"]
    assert main(["evaluate", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["loss"] == pytest.approx(read_metrics(workdir, "validation")[-1]["loss"])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["evaluate", "--tokenize=13a"], "--tokenize"),
        (["evaluate", "--split=dev"], "dev"),
        (["translate"], "task='regression'"),
    ],
)
def test_what_only_translation_has_is_refused(workdir, capsys, flags, named):
    command, *rest = flags
    assert main([command, f"--workdir={workdir}", *rest]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and named in error


def test_another_task_in_the_same_workdir_is_refused(workdir, tmp_path):
    with pytest.raises(InputError, match="task: 'regression' -> 'translation'"):
        data = DataConfig(num_pairs=100, cache_dir=str(tmp_path))
        train(Config(seed=3, data=data), workdir)


def test_it_is_planned_for_devices_that_are_not_here(compiled_programs):
    run = plan_run(regression_config(), jax.devices())
    plan = plan_step(run, 8, H100)
    assert plan.units == 2 and plan.spec["x"].shape == (16, 4)
    assert plan.flops == 0 and plan.needed.state == 4 * 5 * 3 + 4 * 3
    table = format_plan(run, plan)
    assert re.search(r"batch +16 rows of x \[4\] .* 2 examples ", table)
    assert plan_evaluation(run, 8, H100).units == 2
    with pytest.raises(InputError, match="--decode: task='regression'"):
        plan_search(argparse.Namespace(length=None), run)


def test_its_memory_is_checked(tmp_path, monkeypatch, capsys):
    run = prepare_run(regression_config(), tmp_path)
    memory.check_memory(run)
    assert "16 rows of x [4]" in capsys.readouterr().out
    monkeypatch.setattr(memory, "device_memory", lambda device: 10)
    with pytest.raises(InputError, match="data.tokens_per_batch"):
        memory.check_memory(run)


def test_its_attention_is_none(tmp_path):
    run = prepare_run(regression_config(), tmp_path)
    assert check_attention(run.objective, run.dataset.specs(), run.mesh) == ""


def test_a_damaged_loss_is_skipped_and_a_spike_is_answered(tmp_path, monkeypatch):
    """The guards know no task: a step without a finite loss, and a loss far above the usual."""

    class Spiking(Regression):
        def training_data(self, *given, **named):
            dataset = super().training_data(*given, **named)
            batch = dataset.batch

            def change_batch(step, *share):
                changed = batch(step, *share)
                if step == 5:
                    changed["y"] = changed["y"] + np.float32(np.nan)
                if 50 <= step < 60:
                    changed["y"] = changed["y"] + 100
                return changed

            dataset.batch = change_batch
            return dataset

    monkeypatch.setitem(TASKS, "regression", Spiking())
    config = regression_config(num_steps=80, spike_factor=5.0, keep_checkpoints=9)
    assert train(config, tmp_path).exit_status == 0
    assert [row["step"] for row in read_metrics(tmp_path, "skipped")] == [6]
    assert [row["checkpoint"] for row in read_metrics(tmp_path, "rollback")] == [50]


def test_warm_start_takes_parameters_by_path(workdir, tmp_path, capsys):
    config = dataclasses.replace(regression_config(num_steps=10), init_from=f"{workdir}:60")
    train(config, tmp_path / "same")
    assert "2 of 2 parameters" in capsys.readouterr().out
    first = read_metrics(tmp_path / "same", "train")[0]
    assert first["loss"] < 0.05


GENERIC = ("training", "parallel", "planning", "runtime", "storage")
GENERIC_FILES = ("tasks/task.py", "tasks/registry.py", "tasks/open_run.py", "data/dataset.py",
                 "data/loader.py", "evaluation/evaluator.py")  # fmt: skip


def test_the_generic_rooms_do_not_speak_of_translation():
    """But for names of options, which are data to them."""
    root = Path(jaxformer.__file__).parent
    files = [path for room in GENERIC for path in (root / room).rglob("*.py")]
    files += [root / name for name in GENERIC_FILES]
    assert len(files) > 60
    found = {}
    for file in files:
        text = re.sub(r'"(data|training)\.\w+"', "", file.read_text("utf-8"))
        words = re.findall(r"(?i)bleu|sentence pairs?|(?:source|target)[ _]language", text)
        if words:
            found[str(file.relative_to(root))] = words
    assert found == {}


def test_the_model_section_is_that_of_the_task():
    with pytest.raises(InputError, match="task='regression' .*RegressionConfig.*TransformerConfig"):
        change(Config(), task="regression")
    values = Config().to_dict() | {"task": "regression"}
    with pytest.raises(InputError, match="model.vocab_size"):
        Config.from_dict(values)
    small = Config.from_dict({"task": "regression", "model": {"features": 3}})
    assert small.model == RegressionConfig(features=3)
    assert Config.from_json(small.to_json(), "there") == small
