"""Absent devices to compile for, and published speeds of the links between them."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from jaxformer.errors import InputError
from jaxformer.planning.gpu_targets import gpu_devices

# Unless these are given, libtpu asks the metadata server of a TPU machine and waits. It also lets
# only one process load it at a time, though only a process that runs programs needs that.
TPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",  # arbitrary; the topology's name decides
    "TPU_MIN_LOG_LEVEL": "3",
}
TOPOLOGIES = ("v4:2x2x2", "v5e:16x16", "v5p:4x4x4", "v6e:16x16")  # named in messages


class Chip(NamedTuple):
    """Published figures of one JAX device.

    Attributes:
      memory: bytes.
      memory_speed: bytes/s.
      link: bytes/s that a device sends over one link of a torus; for a GPU, to its whole node.
      wraps: a torus axis is a ring if its size is a multiple of this; 0: no torus.
      node: number of devices that `link` connects if there is no torus.
      between_nodes: bytes/s that a device sends to other nodes; 400 Gbit/s per GPU.
    """

    memory: int
    memory_speed: float
    link: float
    wraps: int = 0
    node: int = 0
    between_nodes: float = 50e9


PCIE = 32e9  # bytes/s of sixteen lanes of the fourth generation, one way


def _gpu(gigabytes: int, memory_speed: float, link: float) -> Chip:
    return Chip(gigabytes * 10**9, memory_speed, link, node=8)


# TPU: cloud.google.com/tpu/docs; links from Austin et al. 2025, "How to scale your model": the
# measured speed, a tenth below the docs' figure. GPU: NVIDIA's data sheets; NVLink one way.
CHIPS = (
    (r"TPU v4", Chip(32 * 2**30, 1.2e12, 45e9, wraps=4)),
    (r"TPU v5( lite|e)", Chip(16 * 2**30, 0.81e12, 45e9, wraps=16)),
    (r"TPU v5p?", Chip(95 * 2**30, 2.8e12, 90e9, wraps=4)),
    (r"TPU v6( lite|e)", Chip(32 * 2**30, 1.6e12, 90e9, wraps=16)),
    (r"NVIDIA A100-SXM4-40GB", _gpu(40, 1.555e12, 300e9)),
    (r"NVIDIA A100-SXM4-80GB", _gpu(80, 2.039e12, 300e9)),
    (r"NVIDIA H100 80GB HBM3", _gpu(80, 3.35e12, 450e9)),
    (r"NVIDIA H200", _gpu(141, 4.8e12, 450e9)),
    (r"NVIDIA B200", _gpu(180, 7.7e12, 900e9)),
    (r"NVIDIA L4", _gpu(24, 0.3e12, PCIE)),
    (r"NVIDIA GeForce RTX 4090", _gpu(24, 1.008e12, PCIE)),
)


def find_chip(device_kind: str) -> Chip | None:
    """Published figures of a kind of device; None if there are none here."""
    return next((chip for name, chip in CHIPS if re.fullmatch(name, device_kind)), None)


def group_speed(chip: Chip, devices: Sequence[Any], group: Sequence[int]) -> float:
    """Bytes/s that each device of a group can send to the others, all groups at once.

    On a torus, each axis along which the group extends adds both directions of its ring, or one
    direction of a line. Elsewhere the slowest link on the way counts.

    Args:
      chip: published figures.
      devices: of the whole program, in its order; those of a torus have `coords`.
      group: positions in `devices`.

    Returns:
      Bytes/s.
    """
    if not chip.wraps:
        return chip.link if wire(chip, group) == "links" else min(chip.link, chip.between_nodes)
    speed = 0.0
    for axis in range(len(devices[0].coords)):
        whole = len({device.coords[axis] for device in devices})
        extent = len({devices[index].coords[axis] for index in group})
        if extent > 1:
            ring = extent == whole and whole % chip.wraps == 0
            speed += chip.link * (2 if ring else 1)
    return speed or chip.link


def wire(chip: Chip, group: Sequence[int]) -> str:
    """What a group communicates over: `links` of a torus or node, or the `network`.

    Args:
      chip: published figures.
      group: positions in the program's flat list of devices.
    """
    if chip.wraps or len({index // chip.node for index in group}) == 1:
        return "links"
    return "network"


def absent_devices(topology: str) -> list[jax.Device]:
    """Absent devices to compile for: `v5e:16x16` are TPUs, `h200:4x8` GPUs.

    Raises:
      InputError: the name is unknown, or the compiler is not installed.
    """
    return tpu_devices(topology) if is_tpu(topology) else gpu_devices(topology)


def is_tpu(topology: str) -> bool:
    """Whether a topology names TPUs, which are numbered: v5e."""
    return re.match(r"v\d", topology) is not None


def tpu_devices(topology: str) -> list[jax.Device]:
    """Devices of an absent TPU slice, for which programs can be compiled but not run.

    Args:
      topology: generation and chips along each axis, `v5e:16x16` or `v5p:4x4x4`.

    Returns:
      The devices.

    Raises:
      InputError: libtpu is not installed, or does not know the slice.
    """
    from jax.experimental import topologies

    shape = re.fullmatch(r"v\d+[a-z]*:(\d+(?:x\d+){1,2})", topology)
    if not shape:
        raise InputError(
            f"--topology={topology} must be a generation with the chips along each axis, such as "
            f"{', '.join(TOPOLOGIES)}"
        )
    if not os.environ.get("TPU_LIBRARY_PATH") and importlib.util.find_spec("libtpu") is None:
        chips = math.prod(int(size) for size in shape[1].split("x"))
        raise InputError(
            f"--topology={topology} needs the TPU compiler, which works without a TPU: "
            f'pip install "jax[tpu]", or use --devices={chips} for simulated CPU devices'
        )
    for name, value in TPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return list(topologies.get_topology_desc(topology, "tpu").devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"--topology={topology} is unknown to libtpu ({reason}); "
            f"slices are named like {', '.join(TOPOLOGIES)}"
        ) from error


def present_devices(count: int) -> list[jax.Device]:
    """`count` devices of the kind JAX runs on; on a CPU they are simulated.

    Call it before JAX starts its devices; later it cannot add any.

    Raises:
      InputError: there are fewer devices.
    """
    if count < 1:
        raise InputError(f"--devices={count} must be at least 1")
    with contextlib.suppress(RuntimeError):  # JAX has started
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices()
    if len(devices) < count:
        raise InputError(
            f"--devices={count}: there are only {len(devices)} of {devices[0].device_kind}; set "
            f"JAX_PLATFORMS=cpu to plan for {count} simulated CPU devices, and "
            f'--kind="{devices[0].device_kind}" to use its speed'
        )
    return devices[:count]
