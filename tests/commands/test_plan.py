"""`python -m jaxformer plan`: its table, its refusals, and its flags."""

import re
import types

import jax
import pytest
from training_run import write_config_file

from jaxformer.__main__ import main
from jaxformer.commands import plan as command
from jaxformer.commands.plan_tables import format_plan
from jaxformer.config import MeshConfig
from jaxformer.data.batching import BatchShape
from jaxformer.errors import InputError
from jaxformer.parallel.mesh import make_mesh
from jaxformer.planning import decoding_plan, step_plan
from jaxformer.planning.collectives import Collective
from jaxformer.planning.step_plan import StepPlan
from jaxformer.planning.topology import find_chip
from jaxformer.training.checks.memory import StepMemory

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def config_file(tmp_path, monkeypatch):
    """A small run; the backend of the tests is left as it is."""
    monkeypatch.setattr("jaxformer.runtime.backend.configure_backend", lambda: None)
    return write_config_file(tmp_path / "small.py", tmp_path / "corpus", tmp_path / "cache")


@pytest.fixture
def without_compiler(monkeypatch):
    """Plans without compiling; returns what was asked for."""
    asked = []

    def plan_step(run, length, device_kind):
        asked.append((run.config, length, device_kind))
        return StepPlan(
            shape=BatchShape(length, length, 80, 0), devices=8,
            needed=StepMemory(2**30, 0, 2**20, 2**29), flops=989.5e9, accessed=3.35e8, kernels=[],
            collectives=[Collective("all-reduce", tuple(range(8)), 2**20, 3)],
            network_seconds=[1.75e-3], peak=989.5e12, chip=find_chip(H100),
        )  # fmt: skip

    monkeypatch.setattr(step_plan, "plan_step", plan_step)
    return asked


def test_the_table_of_a_compiled_step(config_file, compiled_programs, tmp_path, capsys):
    flags = "--devices=8", "--config.mesh.fsdp=2", f"--hlo={tmp_path / 'step.hlo'}"
    status = main(["plan", f"--config={config_file}", *flags])
    out, progress = capsys.readouterr()
    assert status == 0
    assert progress == "compiling for 8 x cpu; this takes minutes\n"
    assert "\nENTRY " in (tmp_path / "step.hlo").read_text("utf-8")
    lines = {line.partition("  ")[0]: line for line in out.split("\n") if line[:1] not in ("", " ")}
    assert list(lines) == [
        "devices", "model", "batch", "memory", "compute", "traffic", "network", "bound",
    ]  # fmt: skip
    assert lines["devices"].endswith("8 x cpu as data=4 fsdp=2 tensor=1")
    assert lines["batch"].endswith("64 x (16 + 16) tokens, 128 target tokens a device")
    assert re.search(r"\d MiB: \d", lines["memory"])
    assert re.search(r"^  all-reduce +(data|data\+fsdp) +- +\d+ ", out, re.M)
    assert re.search(r"^  all-gather +fsdp +- +\d+ ", out, re.M)
    assert lines["bound"].endswith("no published figures of this device; name one with --kind")


def test_every_line_says_what_was_found(config_file, without_compiler, capsys):
    arguments = ["plan", f"--config={config_file}", "--devices=8", f"--kind={H100}", "--length=10"]
    assert main([*arguments, "--config.data.tokens_per_batch=800"]) == 0
    config, length, kind = without_compiler[0]
    assert (config.data.tokens_per_batch, length, kind) == (800, 10, H100)
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "devices      8 x cpu as data=8 fsdp=1 tensor=1"
    assert re.fullmatch(r"model        [\d,]+ parameters, float32", lines[1])
    assert lines[2:] == [
        "batch        80 x (10 + 10) tokens, 100 target tokens a device",
        "memory       1.5 GiB of 74.5 GiB: 1.0 GiB parameters and optimizer, 512.0 MiB "
        "temporaries, 1.0 MiB batches",
        "compute      0.990 TFLOP, peak 989.5 TFLOP/s: 1.00 ms",
        "traffic      319.5 MiB of memory, peak 3,350 GB/s: 0.10 ms",
        "network      5.2 MiB sent: 1.75 ms",
        "  collective          over              by        calls      arrays        sent       ms",
        "  all-reduce          data              links         3     3.0 MiB     5.2 MiB     1.75",
        "bound        network: a step takes 1.75 ms at least, 457,143 target tokens/s at most, "
        "57% of the peak; the network is the bound below 175 target tokens a device",
        # 1 ms / 0.7 + 0.1 ms / 0.85 + 1.75 ms
        "predicted    3.30 ms, 242,702 target tokens/s; assumed: products at 70% of the peak, the "
        "rest at 85% of the memory's speed, no message hidden",
        "advice       raise data.tokens_per_batch to 2048, or take at most 4 devices for this "
        "batch",
        "",
    ]


def test_a_batch_too_small_for_the_devices_is_refused_beside_the_table(
    config_file, without_compiler, capsys
):
    arguments = [f"--config={config_file}", "--config.data.max_length=200", "--devices=8"]
    assert main(["plan", *arguments]) == 2
    assert without_compiler[0][0].data.tokens_per_batch == 1600
    out = capsys.readouterr().out
    assert "\nbound " in out
    assert out.endswith(
        "refused      data.tokens_per_batch=1024 is less than a row of data.max_length=200 for "
        "each part of the mesh; raise it to 1600 (as planned here) or take fewer devices\n"
    )


def test_a_slice_is_compiled_for_with_the_tpu_compiler(
    config_file, without_compiler, monkeypatch, capsys
):
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    monkeypatch.setenv("JAXFORMER_XLA_FLAGS", "on")
    asked = []

    def devices(topology):
        asked.append((topology, command.os.environ["JAX_PLATFORMS"]))
        return jax.devices()

    monkeypatch.setattr("jaxformer.planning.topology.tpu_devices", devices)
    assert main(["plan", f"--config={config_file}", "--topology=v5e:2x4"]) == 0
    assert asked == [("v5e:2x4", "cpu")]
    assert command.os.environ["JAXFORMER_XLA_FLAGS"] == "off"
    assert without_compiler[0][1:] == (16, "cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices=8", "--length=17"], "--length=17 must be between 2 and data.max_length=16"),
        (["--devices=8", "--kind=cpu"], "--kind='cpu': with --devices it may be one of"),
        (["--devices=8", "--kind=TPU v5e"], "TPUs are named with --topology"),
        (["--topology=v5e:2x4", f"--kind={H100}"], "TPUs are named with --topology"),
        (["--topology=v5e"], "is not a generation and chips along each axis"),
        (["--devices=8", "--config.mesh.tensor=4"], "tensor=4 does not divide model.num_heads=2"),
        (["--devices=8", "--config.mesh.data=x"], "--config.mesh.data=x: not int"),
        (["--devices=9"], "there are 8 of cpu"),
        (["--devices=8", "--batch=8"], "--batch=8 counts the sentences of --decode"),
        (
            ["--devices=8", "--decode=beam", "--config.decoding.beam_size=1"],
            "--decode=beam: decoding.beam_size=1 is greedy; set --config.decoding.beam_size=4",
        ),
        (
            ["--devices=8", "--decode=beam", "--length=1025"],
            "--length=1025 must be between 2 and decoding.max_source_length=1024",
        ),
        (
            ["--devices=8", "--decode=beam", "--length=64", "--batch=65"],
            "decoding.tokens_per_batch=4096 holds 1 to 64 sentences of 64 tokens; set "
            "--config.decoding.tokens_per_batch=4160",
        ),
        (["--devices=8", "--decode=beam", "--length=0"], "--length=0 must be between 2 and"),
        (["--devices=8", "--decode=beam", "--batch=0"], "--batch=0: decoding.tokens_per_batch"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    config_file, without_compiler, arguments, message, monkeypatch, capsys
):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAXFORMER_XLA_FLAGS", "")
    assert main(["plan", f"--config={config_file}", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert message in captured.err
    assert not captured.out and not without_compiler


def test_a_missing_file_is_named(capsys):
    assert main(["plan", "--config=nowhere.py", "--devices=8"]) == 2
    assert "--config=nowhere.py: no such file" in capsys.readouterr().err


def test_an_evaluation_has_the_same_table(config_file, compiled_programs, capsys):
    flags = "--devices=8", "--evaluate", f"--kind={H100}", "--length=8"
    assert main(["plan", f"--config={config_file}", *flags]) == 0
    out = capsys.readouterr().out
    assert "\nbatch        128 x (8 + 8) tokens, 128 target tokens a device\n" in out
    assert re.search(r"^  all-reduce +data +links +1 ", out, re.M)
    assert re.search(r"^predicted    [\d.]+ ms, [\d,]+ target tokens/s; assumed: ", out, re.M)
    assert "advice" not in out and "the network is the bound" not in out


def test_a_search_is_shown_for_a_token_and_from_end_to_end(
    config_file, compiled_programs, tmp_path, capsys
):
    flags = ["--devices=8", "--decode=beam", f"--kind={H100}", "--batch=20"]
    flags += ["--config.decoding.beam_size=2", f"--hlo={tmp_path / 'search.hlo'}"]
    assert main(["plan", f"--config={config_file}", *flags]) == 0
    out = capsys.readouterr().out
    assert "while(" in (tmp_path / "search.hlo").read_text("utf-8")
    lines = [line for line in out.split("\n") if line[:1] not in ("", " ")]
    assert [line.partition("  ")[0] for line in lines] == [
        "devices", "model", "search", "batch", "memory",
        "a token of every hypothesis",
        "compute", "traffic", "network", "bound", "predicted",
        "the whole batch, if every sentence runs to the limit",
        "compute", "traffic", "network", "bound", "predicted",
    ]  # fmt: skip
    assert "search       beam search, 2 beams" in lines
    assert "batch        32 sentences of 16 tokens, at most 24 target tokens each" in lines
    assert re.search(r"memory +[\d.]+ MiB of 74.5 GiB: .* \(the KV cache is [\d.]+ MiB\)", out)
    found = re.findall(r"(a token|the batch) takes ([\d.]+) ms at least, ([\d,]+) target", out)
    (token, whole) = [float(milliseconds) for _, milliseconds, _ in found]
    assert whole > 20 * token


def test_greedy_is_one_beam_whatever_is_configured(config_file, monkeypatch, capsys):
    asked = []

    def plan_decoding(run, shape, device_kind):
        asked.append((run.config.decoding.beam_size, *shape))
        raise InputError("enough")

    monkeypatch.setattr(decoding_plan, "plan_decoding", plan_decoding)
    arguments = ["plan", f"--config={config_file}", "--devices=8", "--decode=greedy"]
    assert main(arguments) == 2
    assert asked == [(1, 256, 16, 24, 1)]  # 4,096 tokens of decoding.tokens_per_batch


def test_a_search_that_does_not_fit_is_refused_beside_its_table(
    config_file, compiled_programs, monkeypatch, capsys
):
    tiny = find_chip(H100)._replace(memory=2**16)
    monkeypatch.setattr("jaxformer.planning.program_costs.find_chip", lambda kind: tiny)
    arguments = [f"--config={config_file}", "--devices=8", "--decode=greedy", "--batch=8"]
    assert main(["plan", *arguments]) == 2
    out = capsys.readouterr().out
    assert "\nthe whole batch" in out
    assert out.endswith(
        "of 0.1 MiB a device; set decoding.tokens_per_batch=2048 (now 4096), or use more devices\n"
    )


def test_unknown_speeds_are_not_guessed():
    plan = StepPlan(
        shape=BatchShape(4, 4, 8, 0), devices=8, needed=None, flops=1e9, accessed=1e6, kernels=[],
        collectives=[], network_seconds=None, peak=None, chip=None,
    )  # fmt: skip
    run = types.SimpleNamespace(
        mesh=make_mesh(MeshConfig()),
        config=types.SimpleNamespace(model=types.SimpleNamespace(dtype="float32")),
        abstract=types.SimpleNamespace(params={}),
    )
    text = format_plan(run, plan)
    assert "memory       unknown: the compiler does not tell\n" in text
    assert "network      0.0 MiB sent\n" in text
    assert text.endswith(
        "bound        unknown: no published figures of this device; name one with --kind\n"
    )
