"""What training and evaluating would need and reach on devices that need not be here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.dataset import BatchSpec
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluator import LossEvaluator
from jaxformer.models.flops import Flops
from jaxformer.parallel.mesh import batch_parts, make_mesh, row_multiple
from jaxformer.planning.mesh_choice import (
    ROOM,
    bytes_whole,
    check_mesh,
    describe_axes,
    flags,
    propose_mesh,
)
from jaxformer.planning.program_costs import Costs, ProgramReader
from jaxformer.tasks.registry import checked_task
from jaxformer.tasks.task import Objective, Task
from jaxformer.training.checks.memory import (
    StepMemory,
    abstract_batch,
    explain_out_of_memory,
    format_bytes,
    program_memory,
)
from jaxformer.training.program import TrainingProgram
from jaxformer.training.state import TrainState


class PlannedRun(NamedTuple):
    """What of a `Run` follows from the configuration and the devices alone, without any data."""

    config: Config
    mesh: Mesh
    abstract: TrainState
    train_step: Any
    task: Task
    objective: Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan(Costs):
    """A compiled train step, or an evaluation's, as numbers of one device.

    Attributes:
      spec: of the global batch.
      units: that a step takes on each device; in translation target tokens.
      devices: number of them.
      needed: bytes of memory; None if the compiler does not tell.
      text: of the compiled program.
    """

    spec: BatchSpec
    units: float
    devices: int
    needed: StepMemory | None
    text: str = dataclasses.field(default="", repr=False)

    def enough_units(self, mesh: Mesh) -> float | None:
        """Units a device from which on a step computes longer than it sends.

        What crosses `tensor` grows with the units as the arithmetic does, the rest (gradients,
        parameters) stays: `u = fixed / (compute per unit - sent per unit)`. Infinite if sending
        always takes longer; None without published figures.
        """
        compute, _, network = self.seconds
        if compute is None or network is None:
            return None
        growing = sum(
            seconds
            for one, seconds in zip(self.collectives, self.network_seconds, strict=True)
            if "tensor" in one.axes(dict(mesh.shape))
        )
        per_unit = (compute - growing) / self.units
        return (network - growing) / per_unit if per_unit > 0 else math.inf


def plan_run(config: Config, devices: list[jax.Device]) -> PlannedRun:
    """The train step of a run for given devices, its vocabulary as large as it may become.

    Raises:
      InputError: the mesh makes no sense; with one that does.
    """
    task = checked_task(config)
    config = task.planned_config(config, devices[0].platform)
    objective = task.objective(config, None)
    program = TrainingProgram(objective, config.optimizer, config.training.num_steps)
    check_mesh(config, len(devices), propose_mesh(config, program.shapes, devices))
    try:
        mesh = make_mesh(config.mesh, devices)
    except NotImplementedError as error:  # of JAX, for a torus whose axes do not make up the mesh
        raise InputError(
            f"{describe_axes(config.mesh)} cannot be laid along the axes of these "
            f"{len(devices)} x {devices[0].device_kind}: {error}"
        ) from error
    abstract, train_step = program.abstract(mesh), program.train_step(mesh)
    return PlannedRun(config, mesh, abstract, train_step, task, objective)


def compile_step(run: PlannedRun, spec: BatchSpec) -> jax.stages.Compiled:
    """The train step, compiled for the run's devices.

    Args:
      run: from `plan_run`.
      spec: of the global batch; its rows a multiple of `row_multiple`.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    batch = abstract_batch(spec, run.mesh)
    return run.train_step.lower(run.abstract, batch, key).compile()


def compile_evaluation(run: PlannedRun, spec: BatchSpec) -> jax.stages.Compiled:
    """The program of loss sums that evaluators run, compiled for the run's devices.

    Args:
      run: from `plan_run`.
      spec: of the global batch; its rows a multiple of the parts that the mesh shards them into.
    """
    evaluator = LossEvaluator(run.objective, run.mesh, run.abstract.params)
    batch = abstract_batch(spec, run.mesh)
    return evaluator.eval_step.lower(run.abstract.params, batch).compile()


def plan_step(run: PlannedRun, length: int, device_kind: str) -> StepPlan:
    """Compile the train step of full rows for the run's devices, and read the program.

    Args:
      run: from `plan_run`.
      length: tokens a row and side; rows are as many as data.tokens_per_batch holds.
      device_kind: whose published speeds are used.

    Raises:
      InputError: the compiler finds that the step does not fit into memory.
    """
    config = run.config
    spec = run.task.planned_spec(
        config, length, row_multiple(run.mesh, config.optimizer.accumulation_steps)
    )
    with explain_out_of_memory(run.task, config, run.mesh):
        compiled = compile_step(run, spec)
    steps = config.optimizer.accumulation_steps
    trips = run.objective.open_trips(spec, run.mesh, accumulation_steps=steps)
    flops = run.objective.training_flops(spec)
    return _read_plan(run, compiled, spec, device_kind, flops=flops, trips=trips)


def plan_evaluation(run: PlannedRun, length: int, device_kind: str) -> StepPlan:
    """Compile the loss sums of an evaluation during training, and read the program.

    The state of training stays in memory meanwhile. Arguments and errors as of `plan_step`.
    """
    config, parts = run.config, batch_parts(run.mesh)
    spec = run.task.planned_spec(config, length, parts, training=False)
    with explain_out_of_memory(run.task, config, run.mesh):
        compiled = compile_evaluation(run, spec)
    trips, flops = run.objective.open_trips(spec, run.mesh), run.objective.flops(spec)
    return _read_plan(run, compiled, spec, device_kind, flops=flops, trips=trips)


def _read_plan(
    run: PlannedRun,
    compiled: jax.stages.Compiled,
    spec: BatchSpec,
    device_kind: str,
    *,
    flops: Flops | None,
    trips: int,
) -> StepPlan:
    count = run.mesh.size
    reader = ProgramReader(compiled, run.mesh, run.objective.dtype, device_kind)
    costs = reader.costs((flops or Flops(0.0, 0.0)).times(1 / count), unknown_trips=trips)
    return StepPlan(
        **{field.name: getattr(costs, field.name) for field in dataclasses.fields(costs)},
        spec=spec,
        units=run.objective.units(spec) / count,
        devices=count,
        needed=program_memory(compiled, run.abstract, abstract_batch(spec, run.mesh)),
        text=reader.text,
    )


def advise(run: PlannedRun, plan: StepPlan) -> tuple[list[str], list[str]]:
    """Why train.py would refuse the step, and what would make it faster; each with a proposal."""
    refused, advice = [], []
    config, mesh = run.config, run.mesh
    if plan.needed and plan.chip and plan.needed.total > plan.chip.memory:
        cut = propose_mesh(config, run.abstract, list(mesh.devices.flat))
        refused.append(
            f"the step needs {format_bytes(plan.needed.total)} of {format_bytes(plan.chip.memory)} "
            f"a device; use more devices with the same data.tokens_per_batch, model.remat=true, "
            f"optimizer.accumulation_steps, or {flags(cut)}"
        )
    enough = plan.enough_units(mesh)
    if plan.seconds.bound != "network" or enough is None:
        return refused, advice
    if mesh.shape["tensor"] > 1:
        advice.append(
            "mesh.tensor sends activations in every layer, which these widths do not repay; "
            "--config.mesh.tensor=1 sends less"
        )
    elif enough < math.inf:
        per_unit = config.data.tokens_per_batch / plan.units
        budget = math.ceil(enough * per_unit / 1024) * 1024
        fewer = max(int(plan.units * plan.devices / enough), 1)
        advice.append(
            f"raise data.tokens_per_batch to {budget}, or take at most {fewer} devices "
            "for this batch"
        )
    if mesh.shape["fsdp"] > 1 and bytes_whole(run.abstract) <= ROOM * plan.chip.memory:
        advice.append("the state fits into each device whole: --config.mesh.fsdp=1 does as well")
    return refused, advice


def refuse_evaluation(run: PlannedRun, plan: StepPlan) -> list[str]:
    """Why train.py could not evaluate, with what would do; empty if it can."""
    needed, chip, config = plan.needed, plan.chip, run.config
    if not needed or not chip or needed.total <= chip.memory:
        return []
    cut = propose_mesh(config, run.abstract, list(run.mesh.devices.flat))
    return [
        f"the evaluation needs {format_bytes(needed.total)} of {format_bytes(chip.memory)} a "
        f"device; set data.tokens_per_batch={config.data.tokens_per_batch // 2} (now "
        f"{config.data.tokens_per_batch}), use more devices, or {flags(cut)}"
    ]
