"""The costs of a compiled program on each device, with their times at published peaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from jaxformer.models.flops import Flops
from jaxformer.planning.collectives import Collective, read_collectives
from jaxformer.planning.kernels import Kernel, read_kernels
from jaxformer.planning.topology import Chip, find_chip, group_speed
from jaxformer.runtime.device_peaks import peak_flops

# Shares of the published peaks that kernels reach. Assumptions that no run has checked.
PRODUCT_SHARE = 0.7  # of the peak, matrix products of bfloat16 as large as those of a train step
ATTENTION_SHARE = 0.5  # of the peak, fused attention
MEMORY_SHARE = 0.85  # of the memory's speed, memory-bound kernels
LAUNCH_SECONDS = 2e-6  # from the end of a GPU kernel to the start of the next
GPU_PLATFORMS = ("gpu", "cuda")


class Seconds(NamedTuple):
    """Time of a call at published speeds if bound by one resource; None if unpublished."""

    compute: float | None
    memory: float | None
    network: float | None

    @property
    def bound(self) -> str:
        """Name of the largest; empty if one is unknown."""
        return "" if None in self else max(self._fields, key=lambda name: getattr(self, name))

    @property
    def longest(self) -> float | None:
        """The largest; None if one is unknown."""
        return None if None in self else max(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What one call of a program, or of a loop's body, does on each device.

    Attributes:
      flops: of the model's matrix products.
      attention_flops: those of scores and weighted sums, included in `flops`.
      accessed: bytes read from and written to memory.
      kernels: of a GPU program, by kind; empty for other devices.
      collectives: what is sent.
      network_seconds: of each collective; None without published figures.
      peak: FLOP/s; None if unknown.
      chip: memory and links; None if unknown.
    """

    flops: float
    accessed: float
    kernels: list[Kernel]
    collectives: list[Collective]
    network_seconds: list[float] | None
    peak: float | None
    chip: Chip | None
    attention_flops: float = 0.0

    @property
    def seconds(self) -> Seconds:
        return Seconds(
            self.flops / self.peak if self.peak else None,
            self.accessed / self.chip.memory_speed if self.chip else None,
            None if self.network_seconds is None else sum(self.network_seconds),
        )

    @property
    def predicted(self) -> float | None:
        """Predicted seconds of a call, see `predict_seconds`; None without published figures."""
        return predict_seconds(self)


def predict_seconds(costs: Costs) -> float | None:
    """Seconds of a call if each kind of kernel reaches its share of the published peaks.

        products     max(FLOPs / (PRODUCT_SHARE peak), bytes / (MEMORY_SHARE speed))
      + attention    max(FLOPs / (ATTENTION_SHARE peak), bytes / (MEMORY_SHARE speed))
      + others       bytes / (MEMORY_SHARE speed)
      + launches     LAUNCH_SECONDS each
      + network      as published, without overlap

    Attention without a fused kernel counts among the products. For a TPU, whose fusions mix
    products with the rest, it is FLOPs / (PRODUCT_SHARE peak) + bytes / (MEMORY_SHARE speed) +
    network, also without overlap.

    Args:
      costs: of the call.

    Returns:
      Seconds; None if the peaks are unknown.
    """
    if None in costs.seconds:
        return None
    speed, network = MEMORY_SHARE * costs.chip.memory_speed, costs.seconds.network
    if not costs.kernels:
        return costs.flops / (PRODUCT_SHARE * costs.peak) + costs.accessed / speed + network
    accessed = {kernel.kind: kernel.accessed for kernel in costs.kernels}
    accessed.pop("collective", None)  # its time is the network's
    attention_flops = costs.attention_flops if "attention" in accessed else 0.0
    product_flops = costs.flops - attention_flops
    products = max(product_flops / (PRODUCT_SHARE * costs.peak), accessed.pop("product", 0) / speed)
    attention = max(
        attention_flops / (ATTENTION_SHARE * costs.peak), accessed.pop("attention", 0) / speed
    )
    launches = LAUNCH_SECONDS * sum(kernel.count for kernel in costs.kernels)
    return products + attention + sum(accessed.values()) / speed + launches + network


class ProgramReader:
    """The text of a compiled program, and XLA's own figure for its memory traffic."""

    def __init__(self, compiled: jax.stages.Compiled, mesh: Mesh, dtype: str, device_kind: str):
        """
        Args:
          compiled: for the devices of `mesh`.
          mesh: its devices.
          dtype: of the matrix products.
          device_kind: whose published speeds to use.
        """
        self.text = compiled.as_text()
        self._devices = list(mesh.devices.flat)
        self._is_gpu = self._devices[0].platform in GPU_PLATFORMS
        self._chip, self._peak = find_chip(device_kind), peak_flops(device_kind, dtype)
        told = (compiled.cost_analysis() or {}).get("bytes accessed")
        self._scale = 1.0 if self._is_gpu or not told else told / (self._counted((), 1)[0] or 1)

    def _counted(self, starts: Sequence[str], unknown_trips: int) -> tuple[int, list[Kernel]]:
        kernels = read_kernels(self.text, starts=starts, unknown_trips=unknown_trips)
        return sum(kernel.accessed for kernel in kernels), kernels

    def costs(self, flops: Flops, *, starts: Sequence[str] = (), unknown_trips: int = 1) -> Costs:
        """The costs of a call.

        A GPU program's traffic is counted in its text. For other devices XLA's cost analysis gives
        it, but only for the whole program, with one iteration of a loop of unknown length. For a
        part of the program, or for more iterations, it is scaled like the traffic counted in the
        text.

        Args:
          flops: of the call on each device, which the text does not contain.
          starts: names of the computations to start from; none: the whole program.
          unknown_trips: number of iterations assumed for loops whose length XLA does not know.

        Returns:
          The costs on each device.
        """
        counted, kernels = self._counted(starts, unknown_trips)
        collectives = read_collectives(
            self.text, len(self._devices), starts=starts, unknown_trips=unknown_trips
        )
        chip = self._chip
        return Costs(
            flops=flops.total,
            attention_flops=flops.attention,
            accessed=self._scale * counted,
            kernels=kernels if self._is_gpu else [],
            collectives=collectives,
            network_seconds=chip
            and [one.sent / group_speed(chip, self._devices, one.group) for one in collectives],
            peak=self._peak,
            chip=chip,
        )
