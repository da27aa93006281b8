"""Meshes for devices that need not be present: which are valid, and which sends least."""

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
    """`mesh.data=8 x mesh.fsdp=1 x mesh.tensor=1`."""
    return str(mesh)


def propose_mesh(config: Config, state: TrainState, devices: list[jax.Device]) -> MeshConfig:
    """The mesh that sends least: data parallel, sharded by `fsdp` only as far as memory requires.

    Args:
      config: of the run.
      state: shapes of the unsharded state.
      devices: all devices of the job.

    Returns:
      The mesh, with `data` -1.
    """
    chip = find_chip(devices[0].device_kind)
    whole = bytes_whole(state)
    count, widths = len(devices), config.model.sharded_sizes.get("fsdp", {}).values()
    cuts = [
        n for n in range(1, count + 1) if count % n == 0 and all(width % n == 0 for width in widths)
    ]
    fitting = [n for n in cuts if chip is None or whole / n <= ROOM * chip.memory]
    return MeshConfig(data=-1, fsdp=fitting[0] if fitting else cuts[-1])


def check_mesh(config: Config, devices: int, proposed: MeshConfig) -> None:
    """Refuse a mesh that does not fill the devices or does not divide the model.

    Args:
      config: of the run, with the mesh to check.
      devices: number of devices.
      proposed: the mesh that the message suggests.

    Raises:
      InputError: names every problem.
    """
    mesh, model, problems = config.mesh, config.model, []
    sizes = mesh.sizes
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
    """Bytes of state and gradients on a device without sharding."""
    leaves = [*jax.tree.leaves(state), *jax.tree.leaves(state.params)]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
