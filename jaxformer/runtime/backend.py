"""What must be set before JAX starts its devices."""

from __future__ import annotations

import os

import jax

from jaxformer.files.user_paths import cache_folder
from jaxformer.runtime.allocation import keep_freed_memory
from jaxformer.runtime.xla_flags import add_xla_flags, expected_platform


def configure_backend() -> None:
    """Keep compiled programs, and on a CPU freed memory; set XLA's flags.

    Compiled programs go to JAXFORMER_CACHE (or ~/.cache/jaxformer), unless JAX is told where, so
    that a second start of the same run compiles nothing. With several simulated CPU devices in one
    process (`--xla_force_host_platform_device_count`, JAX_NUM_CPU_DEVICES) collectives of steps in
    flight wait for each other for ever when the thread pool is as small as the machine. Flags: see
    `xla_flags`.
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
