"""Settings that must be made before JAX starts its devices."""

from __future__ import annotations

import os

import jax

from jaxformer.files.user_paths import cache_folder
from jaxformer.runtime.allocation import keep_freed_memory
from jaxformer.runtime.xla_flags import add_xla_flags, expected_platform


def configure_backend() -> None:
    """Set the compilation cache, XLA's flags and, on a CPU, memory allocation.

    Compiled programs are cached in JAXFORMER_CACHE (or ~/.cache/jaxformer), unless
    JAX_COMPILATION_CACHE_DIR is set, so that a restart compiles nothing. With several simulated CPU
    devices in one process (`--xla_force_host_platform_device_count`, JAX_NUM_CPU_DEVICES) the
    thread pool must be larger than the machine, or collectives of steps in flight deadlock. Flags:
    see `xla_flags`.
    """
    if expected_platform(os.environ) == "cpu":
        keep_freed_memory()
    add_xla_flags(os.environ)
    simulated = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if simulated or "JAX_NUM_CPU_DEVICES" in os.environ:
        os.environ.setdefault("PJRT_NPROC", "64")
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
