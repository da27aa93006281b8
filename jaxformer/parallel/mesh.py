"""The mesh of devices: axes `data`, `fsdp` and `tensor`."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxformer.config import MeshConfig
from jaxformer.config_sections import MESH_AXES
from jaxformer.errors import InputError
from jaxformer.model_config import ModelSection
from jaxformer.parallel.shares import BatchShare

DATA, FSDP, TENSOR = MESH_AXES


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Arrange devices as `[data, fsdp, tensor]`; an axis of -1 takes all that remain.

    Args:
      config: sizes of the axes.
      devices: None: all of the job's devices.

    Raises:
      InputError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = list(config.sizes)
    fixed = int(np.prod([size for size in sizes if size != -1]))
    if -1 in sizes and len(devices) % fixed == 0:
        sizes[sizes.index(-1)] = len(devices) // fixed
    if int(np.prod(sizes)) != len(devices):
        raise InputError(
            f"{config} does not fill {len(devices)} devices; set one axis to -1 and the others to "
            "a divisor"
        )
    types = (AxisType.Auto,) * len(MESH_AXES)
    return jax.make_mesh(tuple(sizes), MESH_AXES, axis_types=types, devices=devices)


def undivided(model: ModelSection, *, fsdp: int, tensor: int) -> list[str]:
    """Find the fields of a model that the axes of a mesh do not divide, and so could not shard.

    Args:
      model: gives the sizes that each axis shards.
      fsdp: devices along `fsdp`.
      tensor: devices along `tensor`.

    Returns:
      One text per field, such as `fsdp=8 does not divide model.d_model=36`.
    """
    parts = {FSDP: fsdp, TENSOR: tensor}
    return [
        f"{axis}={parts[axis]} does not divide model.{name}={size}"
        for axis, sizes in model.sharded_sizes.items()
        for name, size in sizes.items()
        if size % parts[axis]
    ]


def check_divides(model: ModelSection, mesh: Mesh) -> None:
    """Raise `InputError` if `fsdp` or `tensor` does not divide what it shards."""
    parts = {axis: mesh.shape[axis] for axis in (FSDP, TENSOR)}
    if problems := undivided(model, **parts):
        best = {
            axis: math.gcd(size, *model.sharded_sizes.get(axis, {}).values())
            for axis, size in parts.items()
        }
        raise InputError(
            f"mesh.{', mesh.'.join(problems)}; set mesh.data=-1, mesh.fsdp={best[FSDP]} and "
            f"mesh.tensor={best[TENSOR]}"
        )


def batch_parts(mesh: Mesh) -> int:
    """Number of shards of the rows of a batch."""
    return mesh.shape[DATA] * mesh.shape[FSDP]


def row_multiple(mesh: Mesh, accumulation_steps: int = 1) -> int:
    """The rows of every batch are a multiple of it: of the devices that share them.

    Args:
      mesh: that shards the rows.
      accumulation_steps: micro-batches of an update.
    """
    return batch_parts(mesh) * accumulation_steps


def batch_share(mesh: Mesh, process_index: int | None = None) -> BatchShare:
    """The rows of every batch that the devices of a process hold; None: of this process."""
    process_index = jax.process_index() if process_index is None else process_index
    columns = mesh.devices.reshape(batch_parts(mesh), -1)  # [parts, tensor]
    here = {
        part
        for part, devices in enumerate(columns)
        if any(device.process_index == process_index for device in devices)
    }
    return BatchShare.of_parts(len(columns), here)


def describe_mesh(mesh: Mesh) -> str:
    """One line: `8 x cpu as data=8 fsdp=1 tensor=1`, with the number of processes if several."""
    device = mesh.devices.flat[0]
    axes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
    processes = len({device.process_index for device in mesh.devices.flat})
    split = f" in {processes} processes" if processes > 1 else ""
    return f"{mesh.devices.size} x {device.device_kind}{split} as {axes}"
