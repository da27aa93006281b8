"""Peaks are those of the device named, not of one whose name begins alike."""

import pytest

from jaxformer.runtime.device_peaks import peak_flops


@pytest.mark.parametrize(
    ("device_kind", "dtype", "teraflops"),
    [
        ("NVIDIA H200", "bfloat16", 989.5),
        ("NVIDIA H100 80GB HBM3", "float16", 989.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "float32", 156.0),
        ("NVIDIA A100-PCIE-40GB", "bfloat16", 312.0),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("NVIDIA L40S", "bfloat16", 362.0),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("Tesla V100-SXM2-16GB", "float16", 125.0),
        ("Tesla V100-SXM2-16GB", "bfloat16", None),
        ("TPU v3", "bfloat16", 61.5),
        ("TPU v4", "bfloat16", 275.0),
        ("TPU v5 lite", "float32", 197.0),
        ("TPU v5", "bfloat16", 459.0),
        ("TPU v6 lite", "bfloat16", 918.0),
        ("TPU v6 lite", "float16", None),
        ("TPU7x", "bfloat16", 1153.5),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16", None),
        ("cpu", "float32", None),
    ],
)
def test_peak_of_a_device(device_kind, dtype, teraflops):
    expected = None if teraflops is None else pytest.approx(teraflops * 1e12)
    assert peak_flops(device_kind, dtype) == expected
