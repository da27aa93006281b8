"""What training and evaluating would need and reach on devices that need not be here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.batching import BatchShape, rows_per_batch
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluate import Evaluator
from jaxformer.models.flops import forward_flops
from jaxformer.ops.chunked_loss import automatic_chunk_tokens
from jaxformer.parallel.mesh import batch_parts, make_mesh
from jaxformer.planning.mesh_choice import (
    ROOM,
    bytes_whole,
    check_mesh,
    describe_axes,
    flags,
    propose_mesh,
)
from jaxformer.planning.program_costs import Costs, ProgramReader
from jaxformer.tasks.translation import Translation
from jaxformer.training.checks.memory import (
    StepMemory,
    abstract_batch,
    explain_out_of_memory,
    format_bytes,
    program_memory,
)
from jaxformer.training.program import TrainingProgram
from jaxformer.training.setup import with_vocabularies
from jaxformer.training.state import TrainState

PAD_ID, EOS_ID, BOS_ID = 0, 1, 2  # of vocabularies that are trained here


class PlannedRun(NamedTuple):
    """What of a `Run` follows from the configuration and the devices alone, without any data."""

    config: Config
    mesh: Mesh
    abstract: TrainState
    train_step: Any
    task: Translation


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepPlan(Costs):
    """A compiled train step, or an evaluation's, as numbers of one device.

    Attributes:
      shape: of the batch.
      devices: number of them.
      needed: bytes of memory; None if the compiler does not tell.
      text: of the compiled program.
    """

    shape: BatchShape
    devices: int
    needed: StepMemory | None
    text: str = dataclasses.field(default="", repr=False)

    @property
    def tokens(self) -> float:
        """Target tokens of a step for each device."""
        return self.shape.rows * self.shape.target_length / self.devices

    def enough_tokens(self, mesh: Mesh) -> float | None:
        """Target tokens a device from which on a step computes longer than it sends.

        What crosses `tensor` grows with the tokens as the arithmetic does, the rest (gradients,
        parameters) stays: `t = fixed / (compute per token - sent per token)`. Infinite if sending
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
        per_token = (compute - growing) / self.tokens
        return (network - growing) / per_token if per_token > 0 else math.inf


def plan_run(config: Config, devices: list[jax.Device]) -> PlannedRun:
    """The train step of a run for given devices, its vocabulary as large as it may become.

    Raises:
      InputError: the mesh makes no sense; with one that does.
    """
    pieces = config.tokenizer.vocab_size
    config = with_vocabularies(config, pieces, 0 if config.tokenizer.joint else pieces)
    config = dataclasses.replace(config, data=config.data.for_platform(devices[0].platform))
    task = Translation(config.model, pad_id=PAD_ID, bos_id=BOS_ID)
    program = TrainingProgram(task, config.optimizer, config.training)
    check_mesh(config, len(devices), propose_mesh(config, program.shapes, devices))
    try:
        mesh = make_mesh(config.mesh, devices)
    except NotImplementedError as error:  # of JAX, for a torus whose axes do not make up the mesh
        raise InputError(
            f"{describe_axes(config.mesh)} cannot be laid along the axes of these "
            f"{len(devices)} x {devices[0].device_kind}: {error}"
        ) from error
    return PlannedRun(config, mesh, program.abstract(mesh), program.train_step(mesh), task)


def compile_step(run: PlannedRun, shape: BatchShape) -> jax.stages.Compiled:
    """The train step, compiled for the run's devices.

    Args:
      run: from `plan_run`.
      shape: of the global batch; its rows a multiple of the parts that the mesh and
        optimizer.accumulation_steps cut them into.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    return run.train_step.lower(run.abstract, abstract_batch(run, shape), key).compile()


def compile_evaluation(run: PlannedRun, shape: BatchShape) -> jax.stages.Compiled:
    """The program of loss sums that `Evaluator` runs, compiled for the run's devices.

    Args:
      run: from `plan_run`.
      shape: of the global batch; its rows a multiple of the parts that the mesh cuts them into.
    """
    evaluator = Evaluator(run.config, run.task, (None, None), run.mesh, run.abstract.params)
    return evaluator.eval_step.lower(run.abstract.params, abstract_batch(run, shape)).compile()


def plan_step(run: PlannedRun, length: int, device_kind: str) -> StepPlan:
    """Compile the train step of full rows for the run's devices, and read the program.

    Args:
      run: from `plan_run`.
      length: tokens a row and side; rows are as many as data.tokens_per_batch holds.
      device_kind: whose published speeds to reckon with.

    Raises:
      InputError: the compiler finds that the step does not fit into memory.
    """
    config = run.config
    multiple = batch_parts(run.mesh) * config.optimizer.accumulation_steps
    rows = rows_per_batch(config.data.tokens_per_batch, length, multiple)
    shape = BatchShape(length, length, rows, 0)
    with explain_out_of_memory(config, run.mesh):
        compiled = compile_step(run, shape)
    passes = 2 if config.training.r_drop_alpha > 0.0 else 1
    chunks = loss_chunks(run, rows * length // batch_parts(run.mesh))
    # The backward pass is twice the forward one: `training_flops`.
    return _read_plan(run, compiled, shape, device_kind, forwards=3 * passes, chunks=chunks)


def plan_evaluation(run: PlannedRun, length: int, device_kind: str) -> StepPlan:
    """Compile the loss sums of an evaluation during training, and read the program.

    The state of training stays in memory meanwhile. Arguments and errors as of `plan_step`.
    """
    config, parts = run.config, batch_parts(run.mesh)
    budget = config.data.tokens_per_batch // config.optimizer.accumulation_steps
    shape = BatchShape(length, length, rows_per_batch(budget, length, parts), 0)
    with explain_out_of_memory(config, run.mesh):
        compiled = compile_evaluation(run, shape)
    chunks = loss_chunks(run, shape.rows * length // parts, training=False)
    return _read_plan(run, compiled, shape, device_kind, forwards=1, chunks=chunks)


def _read_plan(
    run: PlannedRun, compiled, shape: BatchShape, device_kind: str, *, forwards: int, chunks: int
) -> StepPlan:
    """The plan of a program whose products are those of so many forward passes."""
    lengths, count = np.full(shape.rows, shape.source_length), run.mesh.size
    flops = forward_flops(run.config.model, lengths, lengths).times(forwards / count)
    reader = ProgramReader(compiled, run.mesh, run.config.model.dtype, device_kind)
    costs = reader.costs(flops, unknown_trips=chunks)
    return StepPlan(
        **{field.name: getattr(costs, field.name) for field in dataclasses.fields(costs)},
        shape=shape,
        devices=count,
        needed=program_memory(compiled, run.abstract, abstract_batch(run, shape)),
        text=reader.text,
    )


def loss_chunks(run: PlannedRun, tokens: int, *, training: bool = True) -> int:
    """Rounds of the loop over the vocabulary's logits, whose number XLA does not know.

    Args:
      run: from `plan_run`.
      tokens: of a part of the batch.
      training: False: of an evaluation, which neither accumulates nor has a second pass.
    """
    config = run.config
    passes = 2 if training and config.training.r_drop_alpha > 0.0 else 1
    steps = config.optimizer.accumulation_steps if training else 1
    chosen = automatic_chunk_tokens(
        config.model.output_vocab_size, config.model.d_model, run.mesh.devices.flat[0].platform
    )
    chunk = (training and config.training.loss_chunk_tokens) or chosen // passes
    return -(-tokens // steps // min(chunk, tokens))


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
    enough = plan.enough_tokens(mesh)
    if plan.seconds.bound != "network" or enough is None:
        return refused, advice
    if mesh.shape["tensor"] > 1:
        advice.append(
            "mesh.tensor sends activations in every layer, which these widths do not repay; "
            "--config.mesh.tensor=1 sends less"
        )
    elif enough < math.inf:
        per_token = config.data.tokens_per_batch / plan.tokens
        budget = math.ceil(enough * per_token / 1024) * 1024
        fewer = max(int(plan.tokens * plan.devices / enough), 1)
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
