"""Absent GPUs: XLA's target configurations, which let it compile for them."""

from __future__ import annotations

import functools
import importlib.util
import re
import tomllib
from importlib.resources import files
from typing import Any

import jax

from jaxformer.errors import InputError
from jaxformer.runtime.xla_flags import CUDA_PLUGINS

PATTERN = r"([a-z][a-z0-9_]*):(?:(\d+)x)?(\d+)"  # h200:8, or nodes x devices per node: h200:4x8
# The same for all NVIDIA GPUs in the file: CUDA programming guide, technical specifications.
COMMON = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "shared_memory_per_block": 49_152,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65_535,
    "block_dim_limit_z": 65_535,
    "registers_per_core_limit": 65_536,
    "registers_per_block_limit": 65_536,
}


@functools.cache
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("jaxformer.planning") / "gpus.toml").read_text("utf-8"))


def gpu_names() -> list[str]:
    """The GPU names that a topology may begin with."""
    return list(_tables()["gpu"])


def target_config(name: str) -> str:
    """XLA's description of a GPU: the text form of its `GpuTargetConfigProto`."""
    tables = _tables()
    gpu = tables["gpu"][name]
    major, minor = gpu["compute_capability"]
    limits = tables["capability"][f"{major}_{minor}"]
    fields = COMMON | {
        "core_count": gpu["multiprocessors"],
        "fpus_per_core": gpu["fpus_per_multiprocessor"],
        "clock_rate_ghz": gpu["clock_ghz"],
        "device_memory_size": gpu["memory_bytes"],
        "memory_bandwidth": gpu["memory_bytes_per_second"],
        "l2_cache_size": gpu["l2_cache_bytes"],
        "shared_memory_per_core": limits["shared_memory"],
        "shared_memory_per_block_optin": limits["shared_memory_optin"],
        "threads_per_core_limit": limits["threads"],
    }
    lines = [f"  {field}: {value}" for field, value in fields.items()]
    lines.append(f"  cuda_compute_capability {{ major: {major} minor: {minor} }}")
    return "\n".join(
        [
            "gpu_device_info {",
            *lines,
            "}",
            'platform_name: "CUDA"',
            f"dnn_version_info {{ {_version(tables['cuda']['cudnn'])} }}",
            f"runtime_version {{ {_version(tables['cuda']['runtime'])} }}",
            f'device_description_str: "{gpu["description"]}"',
        ]
    )


def _version(numbers: list[int]) -> str:
    names = ("major", "minor", "patch")
    return " ".join(f"{name}: {number}" for name, number in zip(names, numbers, strict=True))


def gpu_devices(topology: str) -> list[jax.Device]:
    """Absent GPUs, for which programs can be compiled but not run.

    Args:
      topology: `h200:8`, the devices of one node, or `h200:4x8`, nodes and devices per node.

    Returns:
      The devices.

    Raises:
      InputError: the GPU is unknown, or JAX's CUDA packages are not installed.
    """
    from jax.experimental import topologies

    named = re.fullmatch(PATTERN, topology)
    if not named or named[1] not in _tables()["gpu"]:
        raise InputError(
            f"--topology={topology} is not a known GPU; GPUs are named like h200:8 (one node) or "
            f"h200:4x8 (nodes x devices): {', '.join(gpu_names())}"
        )
    if not any(importlib.util.find_spec(plugin) for plugin in CUDA_PLUGINS):
        raise InputError(
            f"--topology={topology} needs JAX's CUDA packages, which compile without a GPU: "
            "pip install 'jaxformer[cuda]', or 'jax[cuda13]'"
        )
    nodes, devices = int(named[2] or 1), int(named[3])
    described = topologies.get_topology_desc(
        platform="cuda", target_config=target_config(named[1]), topology=f"1x{nodes}x{devices}"
    )
    return list(described.devices)
