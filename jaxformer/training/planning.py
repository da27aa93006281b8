"""What the train step would need and reach on devices that need not be here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import Config, MeshConfig
from jaxformer.data.batching import BatchShape, rows_per_batch
from jaxformer.errors import InputError
from jaxformer.files.outputs import open_output
from jaxformer.ops.chunked_loss import automatic_chunk_tokens
from jaxformer.parallel.collectives import Collective, read_collectives
from jaxformer.parallel.device_peaks import peak_flops
from jaxformer.parallel.kernels import Kernel, read_kernels
from jaxformer.parallel.mesh import batch_parts, make_mesh
from jaxformer.parallel.topology import Chip, find_chip, group_speed
from jaxformer.tasks.translation import Translation
from jaxformer.training.flops import training_flops
from jaxformer.training.memory import (
    StepMemory,
    abstract_batch,
    explain_out_of_memory,
    format_bytes,
    program_memory,
)
from jaxformer.training.program import TrainingProgram
from jaxformer.training.setup import with_vocabularies
from jaxformer.training.state import TrainState

ROOM = 0.5  # share of a device's memory that a proposed mesh fills with state and gradients


class PlannedRun(NamedTuple):
    """What of a `Run` follows from the configuration and the devices alone, without any data."""

    config: Config
    mesh: Mesh
    abstract: TrainState
    train_step: Any


class Seconds(NamedTuple):
    """Time of a step at published speeds, were one thing all that it had to wait for.

    None where nothing is published.
    """

    compute: float | None
    memory: float | None
    network: float | None

    @property
    def bound(self) -> str:
        """The largest of them, by name; empty if one is unknown."""
        return "" if None in self else max(self._fields, key=lambda name: getattr(self, name))


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """A compiled train step, as numbers of one device.

    Attributes:
      shape: of the batch.
      devices: number of them.
      needed: bytes of memory; None if the compiler does not tell.
      flops: of the model's matrix products, by `training_flops`.
      accessed: bytes that the program reads and writes: by the compiler, which counts a loop of
        unknown length once, or by `read_kernels` where it does not tell.
      kernels: of a GPU program, by kind; empty where the compiler tells `accessed`.
      collectives: what is sent.
      network_seconds: of each of them; None without published figures.
      peak: FLOP/s; None if unknown.
      chip: memory and links; None if unknown.
    """

    shape: BatchShape
    devices: int
    needed: StepMemory | None
    flops: float
    accessed: float
    kernels: list[Kernel]
    collectives: list[Collective]
    network_seconds: list[float] | None
    peak: float | None
    chip: Chip | None

    @property
    def tokens(self) -> float:
        """Target tokens of a step for each device."""
        return self.shape.rows * self.shape.target_length / self.devices

    @property
    def seconds(self) -> Seconds:
        return Seconds(
            self.flops / self.peak if self.peak else None,
            self.accessed / self.chip.memory_speed if self.chip else None,
            None if self.network_seconds is None else sum(self.network_seconds),
        )

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
    task = Translation(config.model, pad_id=0, bos_id=2)
    program = TrainingProgram(task, config.optimizer, config.training)
    check_mesh(config, len(devices), propose_mesh(config, program.shapes, devices))
    try:
        mesh = make_mesh(config.mesh, devices)
    except NotImplementedError as error:  # of JAX, for a torus whose axes do not make up the mesh
        raise InputError(
            f"{describe_axes(config.mesh)} cannot be laid along the axes of these "
            f"{len(devices)} x {devices[0].device_kind}: {error}"
        ) from error
    return PlannedRun(config, mesh, program.abstract(mesh), program.train_step(mesh))


def describe_axes(mesh: MeshConfig) -> str:
    return f"mesh.data={mesh.data} x mesh.fsdp={mesh.fsdp} x mesh.tensor={mesh.tensor}"


def propose_mesh(config: Config, state: TrainState, devices: list[jax.Device]) -> MeshConfig:
    """The mesh that sends least: data parallel, cut by `fsdp` only as far as memory asks for it.

    Args:
      config: of the run.
      state: shapes of the whole state.
      devices: all of them.
    """
    chip = find_chip(devices[0].device_kind)
    whole = sum(
        math.prod(leaf.shape) * leaf.dtype.itemsize
        for leaf in [*jax.tree.leaves(state), *jax.tree.leaves(state.params)]
    )
    count, width = len(devices), config.model.d_model
    cuts = [n for n in range(1, count + 1) if count % n == 0 and width % n == 0]
    fitting = [n for n in cuts if chip is None or whole / n <= ROOM * chip.memory]
    return MeshConfig(data=-1, fsdp=fitting[0] if fitting else cuts[-1])


def check_mesh(config: Config, devices: int, proposed: MeshConfig) -> None:
    """Raise `InputError` for a mesh that does not fill the devices or cuts nothing.

    The message names `proposed`.
    """
    mesh, model, problems = config.mesh, config.model, []
    sizes = (mesh.data, mesh.fsdp, mesh.tensor)
    fixed = math.prod(size for size in sizes if size != -1)
    if devices % fixed or (-1 not in sizes and fixed != devices):
        problems.append(f"does not fill {devices} devices")
        fsdp, tensor = max(mesh.fsdp, 1), max(mesh.tensor, 1)
    else:
        fsdp, tensor = (devices // fixed if s == -1 else s for s in (mesh.fsdp, mesh.tensor))
    if model.d_model % fsdp:
        problems.append(f"fsdp={fsdp} does not divide model.d_model={model.d_model}")
    if model.num_heads % tensor:
        problems.append(f"tensor={tensor} does not divide model.num_heads={model.num_heads}")
    if model.d_ff % tensor:
        problems.append(f"tensor={tensor} does not divide model.d_ff={model.d_ff}")
    if problems:
        raise InputError(f"{describe_axes(mesh)}: {'; '.join(problems)}; try {flags(proposed)}")


def flags(mesh: MeshConfig) -> str:
    """`--config.mesh.data=-1 ...`, as train.py takes it."""
    return " ".join(
        f"--config.mesh.{name}={value}" for name, value in dataclasses.asdict(mesh).items()
    )


def plan_step(
    run: PlannedRun, length: int, device_kind: str, *, program_file: str | None = None
) -> StepPlan:
    """Compile the train step of full rows for the run's devices, and read the program.

    Args:
      run: from `plan_run`.
      length: tokens a row and side; rows are as many as data.tokens_per_batch holds.
      device_kind: whose published speeds to reckon with.
      program_file: gets the text of the compiled program.

    Raises:
      InputError: the compiler finds that the step does not fit into memory.
    """
    config, mesh, count = run.config, run.mesh, run.mesh.size
    multiple = batch_parts(mesh) * config.optimizer.accumulation_steps
    rows = rows_per_batch(config.data.tokens_per_batch, length, multiple)
    shape = BatchShape(length, length, rows, 0)
    batch = abstract_batch(run, shape)
    key = jax.eval_shape(lambda: jax.random.key(0))
    with explain_out_of_memory(config, mesh):
        compiled = run.train_step.lower(run.abstract, batch, key).compile()
    trips, text = loss_chunks(run, rows * length // batch_parts(mesh)), compiled.as_text()
    if program_file is not None:
        with open_output(program_file, flag="--hlo") as file:
            file.write(text)
    collectives = read_collectives(text, count, unknown_trips=trips)
    costs = compiled.cost_analysis()
    kernels = [] if costs else read_kernels(text, unknown_trips=trips)
    accessed = costs["bytes accessed"] if costs else sum(kernel.accessed for kernel in kernels)
    chip, devices = find_chip(device_kind), list(mesh.devices.flat)
    seconds = chip and [one.sent / group_speed(chip, devices, one.group) for one in collectives]
    lengths = np.full(rows, length)
    passes = 2 if config.training.r_drop_alpha > 0.0 else 1
    return StepPlan(
        shape=shape,
        devices=count,
        needed=program_memory(compiled, run.abstract, batch),
        flops=passes * training_flops(config.model, lengths, lengths) / count,
        accessed=accessed,
        kernels=kernels,
        collectives=collectives,
        network_seconds=seconds,
        peak=peak_flops(device_kind, config.model.dtype),
        chip=chip,
    )


def loss_chunks(run: PlannedRun, tokens: int) -> int:
    """Rounds of the loop over the vocabulary's logits, whose number XLA does not know."""
    config = run.config
    passes = 2 if config.training.r_drop_alpha > 0.0 else 1
    chosen = automatic_chunk_tokens(
        config.model.output_vocab_size, config.model.d_model, run.mesh.devices.flat[0].platform
    )
    chunk = config.training.loss_chunk_tokens or chosen // passes
    return -(-tokens // config.optimizer.accumulation_steps // min(chunk, tokens))


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
    if mesh.shape["fsdp"] > 1 and bytes_whole(run) <= ROOM * plan.chip.memory:
        advice.append("the state fits into each device whole: --config.mesh.fsdp=1 does as well")
    return refused, advice


def bytes_whole(run: PlannedRun) -> int:
    """Bytes of state and gradients that a device would hold without any cut."""
    leaves = [*jax.tree.leaves(run.abstract), *jax.tree.leaves(run.abstract.params)]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
