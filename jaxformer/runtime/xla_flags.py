"""Flags of the XLA compiler that help training, by platform."""

from __future__ import annotations

import importlib.util
from collections.abc import MutableMapping

# XLA aborts on an unknown flag, so only stable flags are listed, and a test checks that the
# installed XLA accepts each. Defaults are not repeated: Triton's matrix products
# (xla_gpu_enable_triton_gemm, xla_gpu_triton_gemm_any) are on. The TPU's flags (LIBTPU_INIT_ARGS)
# belong to libtpu, which alone knows whether it accepts them; none was tried, so none is set.
XLA_FLAGS = {
    # This pass drops the barriers of jax.checkpoint; XLA then merges what model.remat computes
    # twice and stores all activations again (base, 4,096 tokens: 2.8 GB, without the pass 0.4 GB).
    "cpu": {"xla_disable_hlo_passes": "cse_barrier_expander"},
    # This pass fills free memory: it postpones the gradients' products to the end of the step and
    # holds their inputs until then (base on 8 GPUs: 20.8 GB instead of 14.2, with model.remat 21.2
    # instead of 7.8). It hides no more communication than the order it is given, and it runs
    # whatever xla_gpu_enable_latency_hiding_scheduler says.
    "gpu": {"xla_disable_hlo_passes": "latency-hiding-scheduler"},
    "tpu": {},
}
CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def expected_platform(environment: MutableMapping[str, str]) -> str:
    """`cpu`, `gpu` or `tpu`: what JAX will use, found without starting its devices.

    A plug-in alone is not a device: libtpu also compiles for TPUs that are not present.
    """
    named = environment.get("JAX_PLATFORMS", "").lower().partition(",")[0]
    if named:
        return "gpu" if named in ("cuda", "gpu") else "tpu" if named == "tpu" else "cpu"
    # JAX finds devices by these too; it has no public API for them.
    from jax._src import cloud_tpu_init, hardware_utils

    plugin = any(importlib.util.find_spec(name) for name in CUDA_PLUGINS)
    if plugin and hardware_utils.has_visible_nvidia_gpu():
        return "gpu"
    return "tpu" if cloud_tpu_init.running_in_cloud_tpu_vm else "cpu"


def add_xla_flags(environment: MutableMapping[str, str], platform: str = "") -> list[str]:
    """Add the platform's flags to XLA_FLAGS; a flag already there keeps its value.

    Call it before JAX starts its devices. `JAXFORMER_XLA_FLAGS=off` disables it.

    Args:
      environment: changed in place.
      platform: to compile for; empty: the one that JAX will use.

    Returns:
      The flags added.
    """
    if environment.get("JAXFORMER_XLA_FLAGS", "").lower() in ("off", "0", "false"):
        return []
    given = environment.get("XLA_FLAGS", "").split()
    if given and not given[0].startswith("-"):  # the name of a file of flags
        return []
    names = {flag.lstrip("-").partition("=")[0] for flag in given}
    added = [
        f"--{name}={value}"
        for name, value in XLA_FLAGS[platform or expected_platform(environment)].items()
        if name not in names
    ]
    if added:
        environment["XLA_FLAGS"] = " ".join([*given, *added])
    return added
