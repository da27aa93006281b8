"""Memory of the train step: known before the first step, and too little of it is explained."""

import types

import jax
import pytest
from training_run import change, small_config, write_corpus

from jaxformer.config import Config, MeshConfig
from jaxformer.data.batching import BatchShape
from jaxformer.data.pair_dataset import pair_spec
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import shard_batch
from jaxformer.tasks.translation import TranslationTask
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.checks import memory
from jaxformer.training.checks.memory import (
    StepMemory,
    abstract_batch,
    bytes_per_device,
    check_memory,
    device_memory,
    explain_out_of_memory,
    format_bytes,
    largest_spec,
    propose_budget,
    step_memory,
)
from jaxformer.training.setup import prepare_run

TASK = TranslationTask()
# 300 bytes are there whatever the batch, 1,000 grow with it.
NEEDED = StepMemory(state=200, gradients=100, batches=50, temporaries=1050)


@pytest.mark.parametrize(
    ("available", "smallest", "tokens"),
    [
        (800, 64, 2048),  # half of what grows
        (1299, 64, 3968),  # 4092 rounded down
        (320, 64, 64),  # 81: no multiple of 128, but the smallest batch
        (310, 64, None),
        (250, 64, None),
    ],
)
def test_the_proposed_budget_scales_what_grows_with_the_batch(available, smallest, tokens):
    assert NEEDED.total == 1300
    assert propose_budget(NEEDED, available, 4096, smallest) == tokens


def test_longer_rows_are_larger_at_the_same_number_of_tokens():
    shapes = [BatchShape(8, 8, 64, 5), BatchShape(64, 64, 8, 1), BatchShape(32, 32, 16, 9)]
    specs = [pair_spec(shape, packed=False) for shape in shapes]
    objective = Translation(TransformerConfig.preset("tiny"), pad_id=0, bos_id=2)
    assert largest_spec(objective, types.SimpleNamespace(specs=lambda: specs)) == specs[1]


@pytest.fixture(scope="module")
def make_run(tmp_path_factory):
    """Prepare a run over number words, on some of the simulated devices."""
    folder = tmp_path_factory.mktemp("memory")
    config = small_config(write_corpus(folder / "corpus"), folder / "cache")

    def make(devices, **changes):
        return prepare_run(
            change(config, **changes), folder / "run", devices=jax.devices()[:devices]
        )

    return make


@pytest.fixture(scope="module")
def run(make_run):
    """A run on one device, whose train step is compiled once for all tests."""
    return make_run(1, data__tokens_per_batch=4096)


def test_the_step_is_compiled_once_and_its_memory_is_that_of_the_arrays(run):
    compilations = []

    def count(name, *_, **__):
        if name.endswith("backend_compile_duration"):
            compilations.append(name)

    state = run.program.first_state(jax.random.key(0), run.mesh)
    spec = largest_spec(run.objective, run.dataset)
    (rows, source), (_, target) = spec["inputs"].shape, spec["targets"].shape
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        needed = step_memory(run, spec)
        assert len(compilations) == 1
        batch = {name: jax.numpy.zeros(x.shape, x.dtype) for name, x in
                 abstract_batch(spec, run.mesh).items()}  # fmt: skip
        batch, key = shard_batch(jax.device_get(batch), run.mesh), jax.random.key(1)
        before = len(compilations)
        state, _ = run.train_step(state, batch, key)
        assert len(compilations) == before
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert needed.state == sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert needed.gradients == sum(leaf.nbytes for leaf in jax.tree.leaves(state.params))
    assert needed.batches == 2 * 4 * rows * (source + target)
    assert needed.temporaries > needed.gradients


def test_a_sharded_state_is_counted_by_device(run, make_run):
    cut = make_run(8, mesh__data=1, mesh__fsdp=8)
    sizes = [bytes_per_device(r.abstract.params) for r in (run, cut)]
    inner_biases = 2 * 64 * 4  # of the feed-forwards, on every device whole
    assert sizes[1] == (sizes[0] - inner_biases) // 8 + inner_biases
    batch = abstract_batch(pair_spec(BatchShape(6, 10, 64, 1), packed=False), cut.mesh)
    assert bytes_per_device(batch) == 4 * 8 * (6 + 10)
    packed = make_run(8, data__batching="packed")
    names = {side + part for side in ("inputs", "targets") for part in
             ("", "_segments", "_positions")}  # fmt: skip
    (spec,) = packed.dataset.specs()
    assert set(abstract_batch(spec, packed.mesh)) == names


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does(
    run, make_run, monkeypatch, capsys
):
    check_memory(run)
    line = capsys.readouterr().out
    assert line.startswith("memory    ") and " a device at " in line
    spec = largest_spec(run.objective, run.dataset)
    needed, (rows, length) = step_memory(run, spec), spec["targets"].shape
    available = needed.total // 2
    monkeypatch.setattr(memory, "device_memory", lambda device: available)
    with pytest.raises(InputError) as refused:
        check_memory(run)
    proposed = propose_budget(needed, available, 4096, length)
    assert 256 <= proposed < 2048
    message = str(refused.value)
    assert f"{rows:,} rows of " in message and f"targets [{length}]" in message
    for repair in (f"data.tokens_per_batch={proposed} ", "model.remat=true",
                   "optimizer.accumulation_steps=2"):  # fmt: skip
        assert repair in message
    check_memory(make_run(1, data__tokens_per_batch=proposed))


def test_the_proposed_budget_is_one_that_the_configuration_takes(make_run, monkeypatch):
    """The longest row may not be of the shape that takes most memory, or be longer than any."""
    short = make_run(1, data__max_length=200, data__tokens_per_batch=4096)
    proposed = []
    monkeypatch.setattr(memory, "device_memory", lambda device: 1)
    monkeypatch.setattr(memory, "propose_budget", lambda *a: proposed.append(a[-1]) or a[-1])
    with pytest.raises(InputError, match="set data.tokens_per_batch=200 "):
        check_memory(short)
    assert proposed == [200]


def test_the_memory_of_a_device(monkeypatch, tmp_path):
    assert device_memory(types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 7})) == 7
    silent = types.SimpleNamespace(memory_stats=lambda: None, platform="tpu")
    assert device_memory(silent) is None
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (limit, tmp_path / "none"))
    whole = device_memory(jax.devices()[0])
    assert 2**26 < whole < 2**44
    limit.write_text("max\n")
    assert device_memory(jax.devices()[0]) == whole
    limit.write_text("800000\n")
    assert device_memory(jax.devices()[0]) == 100_000  # one of eight simulated devices


@pytest.mark.parametrize(
    ("model", "proposal"),
    [
        ({}, "model.remat=true, or "),
        ({"model__remat": True}, "model.remat_policy=nothing, or "),
        ({"model__remat": True, "model__remat_policy": "nothing"}, ""),
    ],
)
def test_running_out_of_memory_is_explained(model, proposal):
    config, mesh = change(Config(), data__tokens_per_batch=8192, **model), make_mesh(MeshConfig())
    with pytest.raises(InputError) as explained, explain_out_of_memory(TASK, config, mesh):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory: 9 GiB.\nmore")
    message = str(explained.value)
    assert "9 GiB.)" in message and "more" not in message
    assert "data.tokens_per_batch=4096 " in message and "now 8192" in message
    assert f"{proposal}optimizer.accumulation_steps=2" in message
    assert ("remat" in message) == bool(proposal)
    assert message.endswith("decoding.tokens_per_batch")
    shortest = change(config, data__max_length=8192)  # half of the budget cannot hold a sentence
    with (
        pytest.raises(InputError, match="lower data.max_length"),
        explain_out_of_memory(TASK, shortest, mesh),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory: 9 GiB.\nmore")
    with (
        pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"),
        explain_out_of_memory(TASK, config, mesh),
    ):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


@pytest.mark.parametrize(
    ("longest", "repairs"),
    [
        (256, ("data.tokens_per_batch=4096 ", "accumulation_steps=4")),
        (264, ("lower data.max_length", "mesh.fsdp")),
    ],
)  # fmt: skip
def test_no_repair_is_proposed_that_would_be_refused(longest, repairs):
    """Each of 8 devices and each accumulated part needs a row of the longest sentence."""
    config = change(
        Config(), data__tokens_per_batch=8192, data__max_length=longest,
        optimizer__accumulation_steps=2,
    )  # fmt: skip
    with (
        pytest.raises(InputError) as explained,
        explain_out_of_memory(TASK, config, make_mesh(MeshConfig())),
    ):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory: 9 GiB.")
    message = str(explained.value)
    assert all(repair in message for repair in repairs) and "model.remat=true" in message
    assert ("accumulation_steps" in message) == (longest == 256)


@pytest.mark.parametrize(
    ("count", "text"),
    [(2**20 // 2, "0.5 MiB"), (2**30 - 2**28, "768.0 MiB"), (3 * 2**29, "1.5 GiB")],
)
def test_format_bytes(count, text):
    assert format_bytes(count) == text
