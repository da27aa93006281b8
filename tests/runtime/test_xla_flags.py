"""XLA takes every flag of the presets, and a user's own flags win."""

import os
import subprocess
import sys

import pytest

from jaxformer.runtime.backend import configure_backend
from jaxformer.runtime.xla_flags import XLA_FLAGS, add_xla_flags, expected_platform

SCHEDULER = "--xla_disable_hlo_passes=latency-hiding-scheduler"
BARRIERS = "--xla_disable_hlo_passes=cse_barrier_expander"
# Temporary megabytes of a gradient through six layers, a checksum of it, and its FLOPs.
REMAT = """
import dataclasses, sys
import jax, jax.numpy as jnp
from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer
config = TransformerConfig(vocab_size=50, num_encoder_layers=5, num_decoder_layers=1, d_model=64,
                           d_ff=256, num_heads=2, remat=sys.argv[1] != "plain",
                           remat_policy=sys.argv[1] if sys.argv[1] != "plain" else "nothing")
model, ids = Transformer(config), jnp.ones((16, 64), jnp.int32)
params = model.init(jax.random.key(0), ids, ids)["params"]
loss = lambda params: jnp.sum(jnp.sin(model.apply({"params": params}, ids, ids).logits))
step = jax.jit(jax.grad(loss)).lower(params).compile()
size = sum(jnp.sum(jnp.abs(g)) for g in jax.tree.leaves(step(params)))
print(step.memory_analysis().temp_size_in_bytes / 1e6, float(size), step.cost_analysis()["flops"])
"""


def start_jax(xla_flags):
    """A fresh process that compiles with XLA_FLAGS; XLA ends it at a flag that it does not know."""
    return subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.jit(lambda x: x + 1)(1))"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_the_installed_xla_knows_every_flag():
    flags = [f"--{name}={value}" for preset in XLA_FLAGS.values() for name, value in preset.items()]
    assert flags == [BARRIERS, SCHEDULER]
    for flag in flags:  # of one name, so one after the other
        ended = start_jax(flag)
        assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr


def test_an_unknown_flag_would_have_been_noticed():
    ended = start_jax("--xla_gpu_no_such_flag=true")
    assert ended.returncode != 0 and "Unknown flag in XLA_FLAGS" in ended.stderr


@pytest.mark.parametrize(
    ("environment", "xla_flags"),
    [
        ({"JAX_PLATFORMS": "cuda"}, SCHEDULER),
        ({"JAX_PLATFORMS": "gpu,cpu"}, SCHEDULER),
        ({"JAX_PLATFORMS": "cpu"}, BARRIERS),
        (
            {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_disable_hlo_passes=x"},
            "--xla_disable_hlo_passes=x",
        ),
        ({"JAX_PLATFORMS": "tpu"}, None),
        ({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "flags.txt"}, "flags.txt"),
        ({"JAX_PLATFORMS": "cuda", "JAXFORMER_XLA_FLAGS": "off"}, None),
        (
            {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_dump_to=x"},
            f"--xla_dump_to=x {SCHEDULER}",
        ),
        (
            {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_disable_hlo_passes=x"},
            "--xla_disable_hlo_passes=x",
        ),
    ],
)
def test_what_is_added(environment, xla_flags):
    before = environment.get("XLA_FLAGS", "").split()
    added = add_xla_flags(environment)
    assert environment.get("XLA_FLAGS") == xla_flags
    assert before + added == (xla_flags or "").split()


@pytest.mark.parametrize(
    ("installed", "there", "platform"),
    [
        ("jax_cuda13_plugin", {"gpu"}, "gpu"),
        ("jax_cuda13_plugin", set(), "cpu"),
        ("", {"gpu"}, "cpu"),
        ("libtpu", {"tpu"}, "tpu"),
        ("libtpu", set(), "cpu"),
    ],
)
def test_the_platform_follows_from_what_is_installed_and_there(
    installed, there, platform, monkeypatch
):
    monkeypatch.setattr(
        "jaxformer.runtime.xla_flags.importlib.util.find_spec",
        lambda name: object() if name == installed else None,
    )
    monkeypatch.setattr("jax._src.hardware_utils.has_visible_nvidia_gpu", lambda: "gpu" in there)
    monkeypatch.setattr("jax._src.cloud_tpu_init.running_in_cloud_tpu_vm", "tpu" in there)
    assert expected_platform({}) == platform


def test_the_backend_is_configured_with_them(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")
    configure_backend()
    assert os.environ["XLA_FLAGS"] == SCHEDULER


def test_the_flag_for_cpus_makes_remat_save_memory():
    def measure(mode, xla_flags):
        ended = subprocess.run(
            [sys.executable, "-c", REMAT, mode],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags},
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        return [float(figure) for figure in ended.stdout.split()]

    plain, gradient, work = measure("plain", BARRIERS)
    merged, *_ = measure("nothing", "")
    for policy, memory_share, work_share in (("nothing", 0.4, 1.4), ("projections", 0.55, 1.2)):
        remat, same_gradient, more_work = measure(policy, BARRIERS)
        assert remat < memory_share * plain and remat < memory_share * merged, policy
        assert more_work < work_share * work, policy
        assert same_gradient == pytest.approx(gradient, rel=1e-4)
