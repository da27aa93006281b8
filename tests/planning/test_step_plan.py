"""Plans of a tiny step for eight devices: what it holds, sends and waits for, and bad meshes."""

import dataclasses
import math
import re

import jax
import pytest
from training_run import change, small_config

from jaxformer.config import MeshConfig
from jaxformer.data.batching import BatchShape
from jaxformer.data.pair_dataset import pair_spec
from jaxformer.errors import InputError
from jaxformer.models.flops import forward_flops
from jaxformer.parallel.mesh import make_mesh, row_multiple
from jaxformer.planning import step_plan as planning
from jaxformer.planning.collectives import Collective
from jaxformer.planning.program_costs import Seconds
from jaxformer.planning.step_plan import (
    StepPlan,
    advise,
    plan_evaluation,
    plan_run,
    plan_step,
    refuse_evaluation,
)
from jaxformer.planning.topology import find_chip
from jaxformer.tasks import translation_loss
from jaxformer.tasks.registry import task_of
from jaxformer.training.checks.memory import StepMemory, bytes_per_device

H100 = "NVIDIA H100 80GB HBM3"
SPEC = pair_spec(BatchShape(100, 100, 80, 0), packed=False)  # 1,000 tokens a device of eight
CONFIG = change(small_config("corpus", "cache"), tokenizer__vocab_size=352)


def planned(**changes):
    return plan_run(change(CONFIG, **changes), jax.devices())


@pytest.fixture(scope="module")
def data_parallel(compiled_programs):
    run = planned()
    return run, plan_step(run, 8, H100)


@pytest.fixture(scope="module")
def cut(compiled_programs):
    run = planned(mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    return run, plan_step(run, 8, H100)


def test_the_vocabulary_is_as_large_as_it_may_become():
    model = planned(tokenizer__joint=False).config.model
    assert (model.vocab_size, model.target_vocab_size) == (352, 352)
    assert planned().config.model.target_vocab_size == 0


def test_data_parallel_sends_each_gradient_once(data_parallel):
    run, plan = data_parallel
    assert plan.spec == pair_spec(BatchShape(8, 8, 128, 0), packed=False)  # 1,024 tokens a side
    assert plan.units == 128
    gradients = bytes_per_device(run.abstract.params)
    assert {one.kind for one in plan.collectives} == {"all-reduce"}
    assert {one.axes(dict(run.mesh.shape)) for one in plan.collectives} == {("data",)}
    reduced = sum(one.size * one.count for one in plan.collectives)
    # That of the tied table three times: of the loss and of the embeddings on both sides.
    table = 4 * 352 * run.config.model.d_model
    assert gradients + 2 * table <= reduced <= gradients + 2 * table + 1024
    flops = forward_flops(run.config.model, [8] * 128, [8] * 128)
    assert plan.flops == 3.0 * flops.total / 8
    assert plan.needed.state == bytes_per_device(run.abstract)


def test_times_follow_from_published_speeds(data_parallel):
    _, plan = data_parallel
    assert plan.seconds.compute == plan.flops / 494.5e12  # float32: TF32
    assert plan.seconds.memory == plan.accessed / 3.35e12
    sent = sum(one.sent for one in plan.collectives)
    assert plan.seconds.network == pytest.approx(sent / 450e9)
    assert plan.accessed > 3 * plan.needed.state


def test_a_cut_model_gathers_and_is_smaller(data_parallel, cut):
    run, plan = cut
    axes = {one.axes(dict(run.mesh.shape)) for one in plan.collectives}
    assert any("tensor" in names for names in axes)
    assert any("fsdp" in names for names in axes)
    kinds = {one.kind for one in plan.collectives}
    assert "all-gather" in kinds
    assert plan.needed.state < 0.3 * data_parallel[1].needed.state
    assert plan.units == 128


def test_an_evaluation_is_a_forward_pass_beside_the_whole_state(data_parallel):
    run, step = data_parallel
    plan = plan_evaluation(run, 8, H100)
    assert plan.spec == step.spec
    lengths = [8] * 128
    assert plan.flops == forward_flops(run.config.model, lengths, lengths).total / 8
    assert plan.needed.state == step.needed.state  # of training, which waits
    assert [(one.kind, one.size, one.count) for one in plan.collectives] == [("all-reduce", 16, 1)]
    assert plan.accessed < step.accessed / 2
    assert "ENTRY" in plan.text
    assert refuse_evaluation(run, plan) == []
    small = dataclasses.replace(plan, chip=plan.chip._replace(memory=2**18))
    (line,) = refuse_evaluation(run, small)
    assert re.search(r" 0.2 MiB .*data.tokens_per_batch=512 .*\b1024\b", line)


def test_an_evaluation_takes_the_batch_of_one_accumulated_part(data_parallel, monkeypatch):
    run = planned(optimizer__accumulation_steps=4)
    asked = []
    monkeypatch.setattr(planning, "compile_evaluation", lambda run, spec: asked.append(spec))
    monkeypatch.setattr(planning, "_read_plan", lambda *given, **more: more)
    found = plan_evaluation(run, 8, H100)
    assert asked == [pair_spec(BatchShape(8, 8, 32, 0), packed=False)]
    assert found == {"flops": run.objective.flops(asked[0]), "trips": 1}


def step_plan(**changes):
    """One all-reduce of 450 MB over 8 H100 on `data`: 1.75 ms; 989 GFLOP: 1 ms."""
    plan = StepPlan(
        spec=SPEC, units=1000, devices=8, needed=StepMemory(2**30, 0, 0, 2**30),
        flops=989.5e9, accessed=3.35e8, kernels=[], network_seconds=[1.75e-3], peak=989.5e12,
        collectives=[Collective("all-reduce", tuple(range(8)), 450_000_000, 1)],
        chip=find_chip(H100),
    )  # fmt: skip
    return dataclasses.replace(plan, **changes)


def test_enough_tokens_by_hand():
    mesh = make_mesh(MeshConfig())
    plan = step_plan()
    assert plan.seconds == Seconds(1e-3, pytest.approx(1e-4), 1.75e-3)
    assert plan.seconds.bound == "network"
    assert plan.enough_units(mesh) == pytest.approx(1750)  # 1 us of computing a token
    assert step_plan(peak=None).enough_units(mesh) is None
    assert step_plan(network_seconds=None).seconds.bound == ""


def test_what_tensor_sends_grows_with_the_batch():
    mesh = make_mesh(MeshConfig(tensor=2))
    pair = Collective("all-reduce", (0, 1), 10, 1)
    fixed = Collective("all-reduce", (0, 2, 4, 6), 10, 1)
    plan = step_plan(collectives=[pair, fixed], network_seconds=[0.6e-3, 1e-3])
    assert plan.enough_units(mesh) == pytest.approx(1e-3 / 0.4e-6)
    plan = step_plan(collectives=[pair, fixed], network_seconds=[1.2e-3, 1e-3])
    assert plan.enough_units(mesh) == math.inf


def test_advice_names_the_budget_and_the_devices():
    run = planned(data__tokens_per_batch=8000)
    refused, advice = advise(run, step_plan())
    assert refused == []
    (line,) = advice
    assert re.search("data.tokens_per_batch .*14336.* 4 devices", line)
    assert advise(run, step_plan(flops=1e13)) == ([], [])
    needed = StepMemory(state=2**30, gradients=0, batches=0, temporaries=10**11)
    refused, _ = advise(run, step_plan(needed=needed))
    assert re.search("94.1 GiB .* 74.5 GiB .*more devices", refused[0])
    cut = planned(mesh__fsdp=2, mesh__tensor=2)
    _, advice = advise(cut, step_plan())
    assert len(advice) == 2
    assert "mesh.tensor" in advice[0] and "--config.mesh.fsdp=1" in advice[1]


def test_a_mesh_that_a_torus_does_not_have_is_refused(monkeypatch):
    def refuse(config, devices):
        raise NotImplementedError("no such axes")

    monkeypatch.setattr(planning, "make_mesh", refuse)
    with pytest.raises(InputError, match="mesh.tensor=2 .* 8 x cpu: no such axes"):
        planned(mesh__tensor=2)


def test_the_smallest_budget_gives_each_part_a_row():
    def smallest(config, mesh):
        return (
            task_of(config)
            .batch_budget(config, row_multiple(mesh, config.optimizer.accumulation_steps))
            .smallest
        )

    assert smallest(CONFIG, make_mesh(MeshConfig(tensor=2))) == 4 * 16
    twice = change(CONFIG, optimizer__accumulation_steps=2)
    assert smallest(twice, make_mesh(MeshConfig())) == 8 * 2 * 16


def test_rounds_of_the_loss_loop():
    def rounds(steps, **changes):
        run = planned(**changes)
        return run.objective.open_trips(SPEC, run.mesh, accumulation_steps=steps)

    assert rounds(1, training__loss_chunk_tokens=100) == 10
    assert rounds(1, training__loss_chunk_tokens=300) == 4
    assert rounds(1, training__loss_chunk_tokens=3000) == 1
    assert rounds(2, training__loss_chunk_tokens=100) == 5


def test_the_loss_loop_of_an_evaluation_knows_no_accumulation(monkeypatch):
    monkeypatch.setattr(translation_loss, "automatic_chunk_tokens", lambda *shape: 250)
    run = planned(optimizer__accumulation_steps=2, training__r_drop_alpha=1.0)
    assert run.objective.open_trips(SPEC, run.mesh) == 4
    assert run.objective.open_trips(SPEC, run.mesh, accumulation_steps=2) == 4  # of two passes
