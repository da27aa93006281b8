"""GPUs that are not here: what XLA is told of them, and what is refused."""

import importlib.util
import re

import pytest

from jaxformer.errors import InputError
from jaxformer.ops.attention_choice import published_capability
from jaxformer.planning import gpu_targets
from jaxformer.planning.gpu_targets import gpu_devices, gpu_names, target_config
from jaxformer.planning.topology import absent_devices, find_chip, is_tpu
from jaxformer.runtime.device_peaks import peak_flops

# XLA's own description of an H100, openxla/xla xla/tools/hlo_opt/gpu_specs/h100_sxm.txtpb.
H100 = {
    "threads_per_block_limit": "1024", "threads_per_warp": "32", "shared_memory_per_block": "49152",
    "shared_memory_per_core": "233472", "threads_per_core_limit": "2048", "core_count": "132",
    "fpus_per_core": "128", "block_dim_limit_x": "2147483647", "block_dim_limit_y": "65535",
    "block_dim_limit_z": "65535", "memory_bandwidth": "3352320000000", "l2_cache_size": "52428800",
    "clock_rate_ghz": "1.98", "device_memory_size": "84929347584",
    "shared_memory_per_block_optin": "232448", "registers_per_core_limit": "65536",
    "registers_per_block_limit": "65536",
}  # fmt: skip


def test_xla_is_told_what_it_knows_itself():
    text = target_config("h100")
    assert dict(re.findall(r"^  (\w+): (\S+)$", text, re.M)) == H100
    assert "cuda_compute_capability { major: 9 minor: 0 }" in text
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in text


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_is_known_wherever_figures_are_needed(name):
    text = target_config(name)
    kind = re.search(r'device_description_str: "(.+)"', text)[1]
    major, minor = published_capability(kind)
    assert f"{{ major: {major} minor: {minor} }}" in text
    memory = int(re.search(r"device_memory_size: (\d+)", text)[1])
    speed = int(re.search(r"memory_bandwidth: (\d+)", text)[1])
    chip = find_chip(kind)
    assert chip.memory == pytest.approx(memory, rel=0.08)
    assert chip.memory_speed == pytest.approx(speed, rel=0.01)
    assert peak_flops(kind, "bfloat16") > 1e14


@pytest.mark.parametrize("topology", ["h300:8", "h200", "h200:x8", "h200:4x8x2", "h200:", "H200:8"])
def test_names_that_are_none(topology):
    with pytest.raises(InputError) as refused:
        absent_devices(topology)
    for word in (f"--topology={topology}", "h200:4x8", *gpu_names()):
        assert word in str(refused.value)


def test_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--topology=h200:8 needs .*jaxformer\[cuda\]"):
        gpu_devices("h200:8")


def test_tpus_are_numbered():
    assert is_tpu("v5e:16x16") and is_tpu("v4:2x2x2") and not is_tpu("h200:8")


def test_nodes_and_devices_reach_xla(monkeypatch):
    asked = []

    class Described:
        devices = ("a", "b")

    def describe(**settings):
        asked.append(settings)
        return Described

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", describe)
    monkeypatch.setattr(gpu_targets.importlib.util, "find_spec", lambda name: True)
    assert gpu_devices("h200:4x8") == ["a", "b"] and gpu_devices("l4:2") == ["a", "b"]
    assert [one["topology"] for one in asked] == ["1x4x8", "1x1x2"]
    assert {one["platform"] for one in asked} == {"cuda"}
    assert 'device_description_str: "NVIDIA L4"' in asked[1]["target_config"]
