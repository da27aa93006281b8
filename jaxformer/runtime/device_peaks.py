"""Published peak speeds of accelerators: the denominator of the model FLOP/s utilisation."""

from __future__ import annotations

import re
from typing import NamedTuple


class DevicePeak(NamedTuple):
    """Dense peaks of one JAX device in TFLOP/s; None where the device lacks the arithmetic.

    Attributes:
      bfloat16: matrix products of bfloat16, summed in float32.
      float16: the same of float16.
      float32: XLA's default for float32: TF32 on NVIDIA since Ampere, plain float32 before, one
        bfloat16 pass on a TPU.
    """

    bfloat16: float | None
    float16: float | None
    float32: float | None


def _tpu(peak: float) -> DevicePeak:
    return DevicePeak(bfloat16=peak, float16=None, float32=peak)


def _tensor_cores(half: float, tf32: float) -> DevicePeak:
    return DevicePeak(bfloat16=half, float16=half, float32=tf32)


# The whole `device_kind` must match, so that a laptop's or partitioned GPU is not mistaken for the
# full one. Figures with sparsity are halved.
PEAKS = (
    # cloud.google.com/tpu/docs, system architecture, per chip; JAX shows v2, v3 and v7x chips as
    # two devices, one per core.
    (r"TPU v2", _tpu(45.0 / 2)),
    (r"TPU v3", _tpu(123.0 / 2)),
    (r"TPU v4", _tpu(275.0)),
    (r"TPU v5( lite|e)", _tpu(197.0)),
    (r"TPU v5p?", _tpu(459.0)),
    (r"TPU v6( lite|e)", _tpu(918.0)),
    (r"TPU7x", _tpu(2307.0 / 2)),
    # NVIDIA data sheets of each product
    (r"(Tesla|NVIDIA) V100-SXM2-\d+GB", DevicePeak(None, 125.0, 15.7)),
    (r"(Tesla|NVIDIA) V100-PCIE-\d+GB", DevicePeak(None, 112.0, 14.0)),
    (r"(Tesla|NVIDIA) T4", DevicePeak(None, 65.0, 8.1)),
    (r"NVIDIA A100(-SXM4|-PCIE)-\d+GB|NVIDIA A100 80GB PCIe", _tensor_cores(312.0, 156.0)),
    (r"NVIDIA A10", _tensor_cores(125.0, 62.5)),
    (r"NVIDIA L4", _tensor_cores(121.0, 60.0)),
    (r"NVIDIA L40S", _tensor_cores(362.0, 183.0)),
    (r"NVIDIA H100 80GB HBM3", _tensor_cores(989.5, 494.5)),
    (r"NVIDIA H100 PCIe", _tensor_cores(756.5, 378.0)),
    (r"NVIDIA H100 NVL", _tensor_cores(835.5, 417.5)),
    (r"NVIDIA H200", _tensor_cores(989.5, 494.5)),
    (r"NVIDIA H200 NVL", _tensor_cores(835.5, 417.5)),
    (r"NVIDIA B200", _tensor_cores(2250.0, 1125.0)),
    (r"NVIDIA GB200", _tensor_cores(2500.0, 1250.0)),
    # NVIDIA Ampere GA102 and Ada architecture papers, tensor cores that sum in float32
    (r"NVIDIA GeForce RTX 3090", _tensor_cores(71.0, 35.6)),
    (r"NVIDIA GeForce RTX 4090", _tensor_cores(165.2, 82.6)),
)


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Dense peak of a device for matrix products of a dtype, in FLOP/s.

    Args:
      device_kind: of a `jax.Device`.
      dtype: `bfloat16`, `float16` or `float32`.

    Returns:
      None where nothing is published, as for CPUs.

    Sources: NVIDIA's data sheets and architecture papers, Google's Cloud TPU documentation; figures
    with sparsity are halved.
    """
    for pattern, peak in PEAKS:
        if re.fullmatch(pattern, device_kind):
            teraflops = getattr(peak, dtype)
            return None if teraflops is None else teraflops * 1e12
    return None
