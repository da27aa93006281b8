"""The table of plans: a row for each run and topology, on simulated devices."""

import importlib.util
from pathlib import Path

import jax
import pytest
from training_run import write_config_file

from jaxformer.errors import InputError
from jaxformer.planning.topology import find_chip

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plans.py"
H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("plans_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "start_jax", lambda platform: None)
    monkeypatch.setattr("jaxformer.planning.topology.absent_devices", devices)
    # The simulated devices have the figures of a GPU.
    for name, figure in (("find_chip", find_chip(H100)), ("peak_flops", 1e15)):
        monkeypatch.setattr(
            f"jaxformer.planning.program_costs.{name}", lambda *names, figure=figure: figure
        )
    return module


def devices(topology):
    if topology == "h300:8":
        raise InputError("no such GPU")
    return jax.devices()


@pytest.fixture
def config_file(tmp_path):
    return write_config_file(tmp_path / "small.py", tmp_path / "corpus", tmp_path / "cache")


def table(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_a_row_for_each_topology_and_a_word_for_those_left_out(
    benchmark, config_file, compiled_programs, capsys
):
    arguments = [f"--configs={config_file}", "--topologies", "h200:8", "h300:8"]
    assert benchmark.main([*arguments, "--length=16", "--tokens=64"]) == 1
    out, progress = capsys.readouterr()
    head, rule, row = table(out)
    assert head == benchmark.STEP_HEADER and len(row) == len(rule) == len(head)
    found = dict(zip(head, row, strict=True))
    assert found["run, devices"] == "small, h200:8"
    assert found["tokens a device"] == "64"
    assert found["attention"] == "reference"
    assert found["sent"].startswith("all-reduce ")
    assert found["predicted"].endswith(" tokens/s")
    assert "small, h300:8: left out: no such GPU\n" in progress


def test_the_batch_is_halved_until_it_fits(benchmark, config_file, monkeypatch, capsys):
    from jaxformer.planning import step_plan as planning
    from jaxformer.training.checks.memory import StepMemory

    asked = []

    def plan_step(run, length, kind):
        asked.append(run.config.data.tokens_per_batch // 8)
        if len(asked) == 1:
            raise InputError("the device ran out of memory (RESOURCE_EXHAUSTED)")
        memory = StepMemory(2**30, 0, 0, (90 if len(asked) == 2 else 1) * 2**30)
        return planning.StepPlan(
            spec={}, units=16, devices=8, needed=memory, flops=1.0,
            accessed=1.0, kernels=[], collectives=[], network_seconds=[], peak=1e15,
            chip=find_chip(H100), text='custom_call_target="__cudnn$fmhaSoftmax"',
        )  # fmt: skip

    monkeypatch.setattr(planning, "plan_step", plan_step)
    benchmark.main([f"--configs={config_file}", "--topologies=h200:8", "--length=16"])
    out, progress = capsys.readouterr()
    assert asked == [65_536, 32_768, 16_384]
    assert "65,536 tokens a device do not fit" in progress
    assert table(out)[2][3:6] == ["cuDNN", "-", "nothing"]


def test_searches_have_a_row_each(benchmark, config_file, compiled_programs, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "SEARCHES", (1, 2))
    arguments = [f"--configs={config_file}", "--topologies=h200:8", "--decode", "--sentences=9"]
    assert benchmark.main([*arguments, "--length=16"]) == 0
    head, _, *rows = table(capsys.readouterr().out)
    assert head == benchmark.SEARCH_HEADER
    assert [row[1:3] for row in rows] == [
        ["greedy", "16 x 16, to 24"], ["beam 2", "16 x 16, to 24"],
    ]  # fmt: skip
    assert all(row[-2].endswith(" ms") and row[-1].endswith(" tokens/s") for row in rows)


def test_bad_numbers_are_refused(benchmark, capsys):
    with pytest.raises(SystemExit):
        benchmark.main(["--sentences", "0"])
    assert "must be positive" in capsys.readouterr().err


def test_gpus_and_tpus_are_compiled_for_in_processes_of_their_own(benchmark, monkeypatch):
    commands = []

    class Ended:
        returncode = 1

    def run(command, check):
        commands.append(benchmark.parse_arguments(command[2:]))
        return Ended

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    topologies = ["--topologies", "h200:8", "v5e:4x4", "l4:1"]
    assert benchmark.main(["--length=16", *topologies]) == 1
    assert [one.topologies for one in commands] == [["h200:8", "l4:1"], ["v5e:4x4"]]
    assert {one.length for one in commands} == {16}
