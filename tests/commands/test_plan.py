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
from jaxformer.data.pair_dataset import pair_spec
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
            spec=pair_spec(BatchShape(length, length, 80, 0), packed=False), units=10.0 * length,
            devices=8,
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
    assert "8 x cpu" in progress and progress.count("\n") == 1
    assert "\nENTRY " in (tmp_path / "step.hlo").read_text("utf-8")
    lines = {line.partition("  ")[0]: line for line in out.split("\n") if line[:1] not in ("", " ")}
    assert list(lines) == [
        "devices", "model", "batch", "memory", "compute", "traffic", "network", "bound",
    ]  # fmt: skip
    assert lines["devices"].endswith("8 x cpu as data=4 fsdp=2 tensor=1")
    assert re.search(r" 64 rows .*\[16\].*\[16\], 128 target tokens", lines["batch"])
    assert re.search(r"\d MiB: \d", lines["memory"])
    assert re.search(r"^  all-reduce +(data|data\+fsdp) +- +\d+ ", out, re.M)
    assert re.search(r"^  all-gather +fsdp +- +\d+ ", out, re.M)
    assert "unknown" in lines["bound"] and "--kind" in lines["bound"]


def test_every_line_says_what_was_found(config_file, without_compiler, capsys):
    arguments = ["plan", f"--config={config_file}", "--devices=8", f"--kind={H100}", "--length=10"]
    assert main([*arguments, "--config.data.tokens_per_batch=800"]) == 0
    config, length, kind = without_compiler[0]
    assert (config.data.tokens_per_batch, length, kind) == (800, 10, H100)
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "devices      8 x cpu as data=8 fsdp=1 tensor=1"
    assert re.fullmatch(r"model        [\d,]+ parameters, float32", lines[1])
    expected = [
        r"batch +80 rows .*\[10\].*\[10\], 100 target tokens",
        "memory +1.5 GiB of 74.5 GiB: 1.0 GiB .*, 512.0 MiB .*, 1.0 MiB ",
        "compute +0.990 TFLOP, .* 989.5 TFLOP/s: 1.00 ms$",
        "traffic +319.5 MiB .* 3,350 GB/s: 0.10 ms$",
        "network +5.2 MiB sent: 1.75 ms$",
        " +collective +over +by +calls +arrays +sent +ms$",
        " +all-reduce +data +links +3 +3.0 MiB +5.2 MiB +1.75$",
        "bound +network: .* 1.75 ms.* 457,143 target tokens/s.* 57% .* 175 target tokens",
        # 1 ms / 0.7 + 0.1 ms / 0.85 + 1.75 ms
        "predicted +3.30 ms, 242,702 target tokens/s.* 70% .* 85% ",
        r"advice +.*data.tokens_per_batch .*\b2048\b.* 4 devices",
        "$",
    ]
    for pattern, line in zip(expected, lines[2:], strict=True):
        assert re.match(pattern, line), line


def test_a_batch_too_small_for_the_devices_is_refused_beside_the_table(
    config_file, without_compiler, capsys
):
    arguments = [f"--config={config_file}", "--config.data.max_length=200", "--devices=8"]
    assert main(["plan", *arguments]) == 2
    assert without_compiler[0][0].data.tokens_per_batch == 1600
    out = capsys.readouterr().out
    assert "\nbound " in out
    refused = "refused +data.tokens_per_batch=1024 .*data.max_length=200 .*raise it to 1600 "
    assert re.match(refused, out.split("\n")[-2])


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
        (["--devices=8", "--length=17"], "--length=17 .* 2 .*data.max_length=16"),
        (["--devices=8", "--kind=cpu"], f"--kind='cpu'.*{H100}"),
        (["--devices=8", "--kind=TPU v5e"], "--kind='TPU v5e'.*--topology"),
        (["--topology=v5e:2x4", f"--kind={H100}"], f"--kind='{H100}'.*--topology"),
        (["--topology=v5e"], "--topology=v5e .*v5e:16x16"),
        (["--devices=8", "--config.mesh.tensor=4"], "tensor=4 .*model.num_heads=2.*mesh.tensor=1"),
        (["--devices=8", "--config.mesh.data=x"], "--config.mesh.data=x: .*int"),
        (["--devices=9"], "--devices=9.* 8 "),
        (["--devices=8", "--batch=8"], "--batch=8 .*--decode.*--config.data.tokens_per_batch"),
        (
            ["--devices=8", "--decode=beam", "--config.decoding.beam_size=1"],
            "--decode=beam.*decoding.beam_size=1 .*--config.decoding.beam_size=4",
        ),
        (
            ["--devices=8", "--decode=beam", "--length=1025"],
            "--length=1025 .* 2 .*decoding.max_source_length=1024",
        ),
        (
            ["--devices=8", "--decode=beam", "--length=64", "--batch=65"],
            "decoding.tokens_per_batch=4096 .* 64 .*--config.decoding.tokens_per_batch=4160",
        ),
        (["--devices=8", "--decode=beam", "--length=0"], "--length=0 .* 2 "),
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
    assert re.search(message, captured.err)
    assert not captured.out and not without_compiler


def test_a_missing_file_is_named(capsys):
    assert main(["plan", "--config=nowhere.py", "--devices=8"]) == 2
    assert "--config=nowhere.py: " in capsys.readouterr().err


def test_an_evaluation_has_the_same_table(config_file, compiled_programs, capsys):
    flags = "--devices=8", "--evaluate", f"--kind={H100}", "--length=8"
    assert main(["plan", f"--config={config_file}", *flags]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^batch +128 rows .*\[8\].*\[8\], 128 target tokens", out, re.M)
    assert re.search(r"^  all-reduce +data +links +1 ", out, re.M)
    assert re.search(r"^predicted +[\d.]+ ms, [\d,]+ target tokens/s", out, re.M)
    assert "advice" not in out
    assert not re.search(r"^bound .*target tokens.*target tokens", out, re.M)


def test_a_search_is_shown_for_a_token_and_from_end_to_end(
    config_file, compiled_programs, tmp_path, capsys
):
    flags = ["--devices=8", "--decode=beam", f"--kind={H100}", "--batch=20"]
    flags += ["--config.decoding.beam_size=2", f"--hlo={tmp_path / 'search.hlo'}"]
    assert main(["plan", f"--config={config_file}", *flags]) == 0
    out = capsys.readouterr().out
    assert "while(" in (tmp_path / "search.hlo").read_text("utf-8")
    lines = [line for line in out.split("\n") if line[:1] not in ("", " ")]
    names = [line.split()[0] for line in lines]
    assert names[:5] == ["devices", "model", "search", "batch", "memory"]
    costs = ["compute", "traffic", "network", "bound", "predicted"]
    assert names[6:11] == names[12:] == costs
    assert "token" in lines[5] and "batch" in lines[11]
    assert re.match("search +beam search, 2 beams", lines[2])
    assert re.match("batch +32 sentences of 16 tokens, .* 24 target tokens", lines[3])
    assert re.search(r"memory +[\d.]+ MiB of 74.5 GiB: .*KV cache .*[\d.]+ MiB", out)
    found = re.findall(r"^bound .* ([\d.]+) ms.* [\d,]+ target tokens/s", out, re.M)
    (token, whole) = map(float, found)
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
    assert out.count("\nbound ") == 2
    refused = r"refused .* 0.1 MiB .*decoding.tokens_per_batch=2048 .*\b4096\b"
    assert re.match(refused, out.split("\n")[-2])


def test_unknown_speeds_are_not_guessed():
    plan = StepPlan(
        spec=pair_spec(BatchShape(4, 4, 8, 0), packed=False), units=4.0, devices=8, needed=None,
        flops=1e9, accessed=1e6, kernels=[], collectives=[], network_seconds=None, peak=None,
        chip=None,
    )  # fmt: skip
    run = types.SimpleNamespace(
        mesh=make_mesh(MeshConfig()),
        objective=types.SimpleNamespace(unit="target_tokens", dtype="float32"),
        abstract=types.SimpleNamespace(params={}),
    )
    text = format_plan(run, plan)
    assert re.search("^memory +unknown", text, re.M)
    assert re.search("^network +0.0 MiB sent$", text, re.M)
    assert re.match("bound +unknown.*--kind", text.split("\n")[-2])
