"""Devices that are not there: names, refusals, and the speed of the wires between them."""

import importlib.util
import itertools
import os
import types

import jax
import pytest
from jax.experimental import topologies

from jaxformer.errors import InputError
from jaxformer.planning.topology import (
    CHIPS,
    TPU_ENVIRONMENT,
    find_chip,
    group_speed,
    present_devices,
    tpu_devices,
)
from jaxformer.runtime.device_peaks import peak_flops


def torus(*sizes):
    """Devices of a slice in the order of their coordinates."""
    return [types.SimpleNamespace(coords=xyz) for xyz in itertools.product(*map(range, sizes))]


@pytest.mark.parametrize(
    ("kind", "gigabytes"),
    [
        ("TPU v4", 32), ("TPU v5 lite", 16), ("TPU v5e", 16), ("TPU v5", 95), ("TPU v5p", 95),
        ("TPU v6 lite", 32), ("NVIDIA H100 80GB HBM3", 74.5), ("NVIDIA H200", 131.3),
    ],
)  # fmt: skip
def test_figures_of_chips(kind, gigabytes):
    chip = find_chip(kind)
    assert chip.memory / 2**30 == pytest.approx(gigabytes, abs=0.1)
    assert peak_flops(kind, "bfloat16") > 1e14
    assert 4e11 < chip.memory_speed < 1e13
    assert bool(chip.wraps) != bool(chip.node)


def test_other_devices_have_no_figures():
    assert find_chip("cpu") is None
    assert find_chip("NVIDIA H100 PCIe") is None


@pytest.mark.parametrize(
    ("kind", "sizes", "group", "links"),
    [
        ("TPU v5e", (16, 16), range(256), 4),  # both axes, rings
        ("TPU v5e", (16, 16), range(16), 2),  # along y, a ring
        ("TPU v5e", (16, 16), range(0, 256, 16), 2),  # along x
        ("TPU v5e", (16, 16), range(4), 1),  # a piece of y is a line
        ("TPU v5e", (4, 8), range(32), 2),  # no axis of 16: two lines
        ("TPU v5p", (4, 4, 4), range(64), 6),
        ("TPU v5p", (4, 4, 4), range(16), 4),
        ("TPU v5p", (2, 2, 4), range(16), 4),  # two lines and a ring
    ],
)
def test_each_axis_of_a_torus_adds_its_links(kind, sizes, group, links):
    chip = find_chip(kind)
    assert group_speed(chip, torus(*sizes), list(group)) == links * chip.link


def test_gpus_of_one_node_are_faster_than_those_of_two():
    chip = find_chip("NVIDIA H100 80GB HBM3")
    devices = [object()] * 16
    assert group_speed(chip, devices, range(8)) == 450e9
    assert group_speed(chip, devices, range(8, 16)) == 450e9
    assert group_speed(chip, devices, (0, 8)) == group_speed(chip, devices, range(16)) == 50e9


@pytest.mark.parametrize("kind", [pattern for pattern, _ in CHIPS])
def test_no_two_patterns_of_chips_are_the_same(kind):
    assert [pattern for pattern, _ in CHIPS].count(kind) == 1


@pytest.fixture
def with_libtpu(monkeypatch, tmp_path):
    """As if libtpu were installed; variables that are set are forgotten after the test."""
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))
    for name in TPU_ENVIRONMENT:
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)


def test_the_tpu_compiler_is_asked_for_the_slice(monkeypatch, with_libtpu):
    asked = []

    def describe(name, platform):
        asked.append((name, platform, os.environ["TPU_SKIP_MDS_QUERY"]))
        return types.SimpleNamespace(devices=("a", "b"))

    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    assert tpu_devices("v5e:2x1") == ["a", "b"]
    assert asked == [("v5e:2x1", "tpu", "1")]


def test_a_slice_that_does_not_exist_is_refused(monkeypatch, with_libtpu):
    def refuse(name, platform):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no such thing\nmore")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(InputError) as refused:
        tpu_devices("v5e:3x3")
    message = str(refused.value)
    assert message.startswith("--topology=v5e:3x3 ")
    assert "INVALID_ARGUMENT: no such thing" in message and "more" not in message
    assert "v4:2x2x2, v5e:16x16, v5p:4x4x4, v6e:16x16" in message


def test_without_libtpu_the_extra_is_named(monkeypatch):
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as refused:
        tpu_devices("v5p:4x4x4")
    message = str(refused.value)
    assert "--topology=v5p:4x4x4 " in message
    assert 'pip install "jax[tpu]"' in message and "--devices=64" in message


@pytest.mark.parametrize("name", ["v5e-256", "16x16", "v5e:16", "v5e:4x4x4x4", ""])
def test_other_names_are_refused(name):
    with pytest.raises(InputError, match=f"--topology={name} .*v4:2x2x2, v5e:16x16"):
        tpu_devices(name)


def test_devices_that_are_here():
    assert present_devices(8) == jax.devices()
    assert present_devices(2) == jax.devices()[:2]
    with pytest.raises(InputError, match="--devices=0 .*at least 1"):
        present_devices(0)
    with pytest.raises(InputError, match="--devices=9: .* 8 .*cpu.*JAX_PLATFORMS=cpu"):
        present_devices(9)
