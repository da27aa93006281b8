"""Costs of a compiled program, and the seconds predicted from them, by hand."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import pytest

from jaxformer.config import MeshConfig
from jaxformer.models.flops import Flops
from jaxformer.parallel.mesh import make_mesh
from jaxformer.planning.collectives import Collective
from jaxformer.planning.kernels import Kernel
from jaxformer.planning.program_costs import Costs, ProgramReader, predict_seconds
from jaxformer.planning.topology import find_chip

H100 = "NVIDIA H100 80GB HBM3"
# A second each at the assumed shares: of 1e15 FLOP/s the products' and attention's, of 1e12 B/s.
PRODUCTS, ATTENTION, MEMORY = 7e14, 5e14, 8.5e11


def costs(kernels=(), **changes):
    values = {
        "flops": 2 * PRODUCTS, "attention_flops": 0.0, "accessed": 3 * MEMORY,
        "kernels": [Kernel(*kernel) for kernel in kernels],
        "collectives": [Collective("all-reduce", (0, 1), 10, 1)], "network_seconds": [0.25],
        "peak": 1e15, "chip": find_chip(H100)._replace(memory_speed=1e12),
    }  # fmt: skip
    return Costs(**values | changes)


def test_without_kernels_nothing_is_hidden():
    assert predict_seconds(costs()) == pytest.approx(2 + 3 + 0.25)
    assert costs().predicted == predict_seconds(costs())


def test_each_kind_of_kernel_waits_for_its_own():
    kernels = [
        ("product", 1000, MEMORY / 2),  # waits for the products
        ("loop fusion", 2000, MEMORY),
        ("reduction", 500, MEMORY / 4),
        ("collective", 100, 10 * MEMORY),  # its time is the network's
    ]
    launches = 3600 * 2e-6
    assert predict_seconds(costs(kernels)) == pytest.approx(2 + 1.25 + launches + 0.25)
    kernels[0] = ("product", 1000, 4 * MEMORY)  # small products wait for their weights
    assert predict_seconds(costs(kernels)) == pytest.approx(4 + 1.25 + launches + 0.25)


def test_fused_attention_has_its_own_share():
    flops = {"flops": PRODUCTS + 2 * ATTENTION, "attention_flops": 2 * ATTENTION}
    kernels = [("product", 1, 0.0), ("attention", 1, MEMORY)]
    assert predict_seconds(costs(kernels, **flops)) == pytest.approx(1 + 2 + 4e-6 + 0.25)
    kernels[1] = ("attention", 1, 3 * MEMORY)
    assert predict_seconds(costs(kernels, **flops)) == pytest.approx(1 + 3 + 4e-6 + 0.25)
    # Without a fused kernel its arithmetic is done by products.
    found = predict_seconds(costs(kernels[:1], **flops))
    assert found == pytest.approx((PRODUCTS + 2 * ATTENTION) / PRODUCTS + 2e-6 + 0.25)


@pytest.mark.parametrize("unknown", ["peak", "chip", "network_seconds"])
def test_nothing_is_predicted_without_published_figures(unknown):
    assert predict_seconds(costs(**{unknown: None})) is None


def test_the_longest_wait():
    seconds = costs(flops=5e14).seconds
    assert (seconds.bound, seconds.longest) == ("memory", 2.55)
    assert dataclasses.replace(costs(), peak=None).seconds.longest is None


GPU_PROGRAM = """HloModule jit_step

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %product = f32[8,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %reduced = f32[8,4]{1,0} all-reduce(%product), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
}
"""  # noqa: E501


def read(text, platform, told, **arguments):
    """The costs of a text as of some devices, with XLA's own account of bytes."""
    mesh = make_mesh(MeshConfig())
    devices = [types.SimpleNamespace(platform=platform)] * 8
    compiled = types.SimpleNamespace(
        as_text=lambda: text, cost_analysis=lambda: told and {"bytes accessed": told}
    )
    mesh = types.SimpleNamespace(devices=types.SimpleNamespace(flat=devices), shape=mesh.shape)
    return ProgramReader(compiled, mesh, "bfloat16", H100).costs(Flops(6.0, 2.0), **arguments)


@pytest.mark.parametrize("told", [None, 1e9])
def test_a_gpus_program_is_counted(told):
    found = read(GPU_PROGRAM, "gpu", told)
    assert found.accessed == 3 * 128 + 2 * 128
    assert [(kernel.kind, kernel.count) for kernel in found.kernels] == [
        ("product", 1), ("collective", 1),
    ]  # fmt: skip
    assert (found.flops, found.attention_flops, found.peak) == (8.0, 2.0, 989.5e12)
    assert found.network_seconds == [pytest.approx(2 * 7 / 8 * 128 / 450e9)]


def test_elsewhere_xla_tells_the_bytes_of_a_call_with_each_open_loop_once():
    def f(x):
        def body(carry):
            count, x = carry
            return count + 1, jnp.tanh(x @ x)

        def unfinished(carry):
            return (carry[0] < 50) & (jnp.sum(carry[1]) > 0)

        return jax.lax.while_loop(unfinished, body, (0, x @ x))

    compiled = jax.jit(f).lower(jnp.ones((64, 64))).compile()
    text, told = compiled.as_text(), compiled.cost_analysis()["bytes accessed"]
    once = read(text, "cpu", told)
    assert once.accessed == pytest.approx(told)
    assert once.kernels == []
    rounds = [read(text, "cpu", told, unknown_trips=trips).accessed for trips in (2, 3, 11)]
    assert rounds[0] > told
    assert rounds[2] - rounds[0] == pytest.approx(9 * (rounds[1] - rounds[0]))
    counted = read(text, "cpu", None)  # XLA does not tell
    assert counted.accessed > 64 * 64 * 4
