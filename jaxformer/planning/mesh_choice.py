"""Meshes for devices that need not be here: which make sense, and which sends least."""

from __future__ import annotations

import dataclasses
import math

import jax

from jaxformer.config import Config, MeshConfig
from jaxformer.errors import InputError
from jaxformer.parallel.mesh import undivided
from jaxformer.planning.topology import find_chip
from jaxformer.training.state import TrainState

ROOM = 0.5  # share of a device's memory that a proposed mesh fills with state and gradients


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
    whole = bytes_whole(state)
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
    problems += undivided(model, fsdp=fsdp, tensor=tensor)
    if problems:
        raise InputError(f"{describe_axes(mesh)}: {'; '.join(problems)}; try {flags(proposed)}")


def flags(mesh: MeshConfig) -> str:
    """`--config.mesh.data=-1 ...`, as train.py takes it."""
    return " ".join(
        f"--config.mesh.{name}={value}" for name, value in dataclasses.asdict(mesh).items()
    )


def bytes_whole(state: TrainState) -> int:
    """Bytes of state and gradients that a device would hold without any cut."""
    leaves = [*jax.tree.leaves(state), *jax.tree.leaves(state.params)]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
