"""The mesh of devices: axes `data`, `fsdp` and `tensor`."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxformer.config import MeshConfig
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.shares import BatchShare

AXES = ("data", "fsdp", "tensor")


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Arrange devices as `[data, fsdp, tensor]`; an axis of -1 takes all that remain.

    Args:
      config: sizes of the axes.
      devices: None: all of the job's devices.

    Raises:
      InputError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    fixed = int(np.prod([size for size in sizes if size != -1]))
    if -1 in sizes and len(devices) % fixed == 0:
        sizes[sizes.index(-1)] = len(devices) // fixed
    if int(np.prod(sizes)) != len(devices):
        raise InputError(
            f"mesh.data={config.data} x mesh.fsdp={config.fsdp} x mesh.tensor={config.tensor} does "
            f"not fill {len(devices)} devices; set one axis to -1 and the others to a divisor"
        )
    return jax.make_mesh(tuple(sizes), AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def undivided(model: TransformerConfig, *, fsdp: int, tensor: int) -> list[str]:
    """What of a model the axes of a mesh do not divide, one text each: they would not cut it."""
    sizes = (
        ("fsdp", fsdp, "d_model", model.d_model),
        ("tensor", tensor, "num_heads", model.num_heads),
        ("tensor", tensor, "d_ff", model.d_ff),
    )
    return [
        f"{axis}={parts} does not divide model.{name}={size}"
        for axis, parts, name, size in sizes
        if size % parts
    ]


def check_divides(model: TransformerConfig, mesh: Mesh) -> None:
    """Raise `InputError` if `fsdp` or `tensor` does not divide what it is to cut."""
    fsdp, tensor = mesh.shape["fsdp"], mesh.shape["tensor"]
    if problems := undivided(model, fsdp=fsdp, tensor=tensor):
        raise InputError(
            f"mesh.{', mesh.'.join(problems)}; set mesh.data=-1, mesh.fsdp="
            f"{math.gcd(fsdp, model.d_model)} and mesh.tensor="
            f"{math.gcd(tensor, model.num_heads, model.d_ff)}"
        )


def batch_parts(mesh: Mesh) -> int:
    """Number of parts into which the rows of a batch are cut."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def batch_share(mesh: Mesh, process_index: int | None = None) -> BatchShare:
    """The rows of every batch that the devices of a process hold; None: of this one."""
    process_index = jax.process_index() if process_index is None else process_index
    columns = mesh.devices.reshape(batch_parts(mesh), -1)  # [parts, tensor]
    here = {
        part
        for part, devices in enumerate(columns)
        if any(device.process_index == process_index for device in devices)
    }
    return BatchShare.of_parts(len(columns), here)


def describe_mesh(mesh: Mesh) -> str:
    """One line: `8 x cpu as data=8 fsdp=1 tensor=1`, and how many processes, if several."""
    device = mesh.devices.flat[0]
    axes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
    processes = len({device.process_index for device in mesh.devices.flat})
    split = f" in {processes} processes" if processes > 1 else ""
    return f"{mesh.devices.size} x {device.device_kind}{split} as {axes}"
