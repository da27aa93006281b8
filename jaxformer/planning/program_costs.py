"""What a call of a compiled program costs each device: read from the program, timed at peaks."""

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

# What kernels reach of the published peaks. Assumed; no run has checked them.
PRODUCT_SHARE = 0.7  # of the peak, matrix products of bfloat16 as large as those of a train step
ATTENTION_SHARE = 0.5  # of the peak, fused attention
MEMORY_SHARE = 0.85  # of the memory's speed, kernels that wait for it
LAUNCH_SECONDS = 2e-6  # from the end of a kernel of a GPU to the begin of the next
GPU_PLATFORMS = ("gpu", "cuda")


class Seconds(NamedTuple):
    """Time of a call at published speeds, were one thing all that it had to wait for.

    None where nothing is published.
    """

    compute: float | None
    memory: float | None
    network: float | None

    @property
    def bound(self) -> str:
        """The largest of them, by name; empty if one is unknown."""
        return "" if None in self else max(self._fields, key=lambda name: getattr(self, name))

    @property
    def longest(self) -> float | None:
        """The largest of them; None if one is unknown."""
        return None if None in self else max(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What one call of a program, or of a loop's body, does on each device.

    Attributes:
      flops: of the model's matrix products.
      attention_flops: those of scores and weighted sums, a part of `flops`.
      accessed: bytes that are read from and written to memory.
      kernels: of a GPU program, by kind; empty for other devices.
      collectives: what is sent.
      network_seconds: of each of them; None without published figures.
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
        """Seconds that a call would take; None without published figures. See `predict_seconds`."""
        return predict_seconds(self)


def predict_seconds(costs: Costs) -> float | None:
    """Seconds of a call if each kind of kernel reaches its share of the published peaks.

        products     max(FLOPs / (PRODUCT_SHARE peak), bytes / (MEMORY_SHARE speed))
      + attention    max(FLOPs / (ATTENTION_SHARE peak), bytes / (MEMORY_SHARE speed))
      + others       bytes / (MEMORY_SHARE speed)
      + launches     LAUNCH_SECONDS each
      + network      as published, none of it hidden behind the others

    Attention that is no fused kernel counts among the products. For a TPU, whose fusions mix
    products with the rest, it is FLOPs / (PRODUCT_SHARE peak) + bytes / (MEMORY_SHARE speed) +
    network: nothing is hidden there either.

    Args:
      costs: of the call; None is returned unless its peaks are known.
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
    """The text of a compiled program, and what XLA itself says of its memory traffic."""

    def __init__(self, compiled: jax.stages.Compiled, mesh: Mesh, dtype: str, device_kind: str):
        """
        Args:
          compiled: for the devices of `mesh`.
          mesh: its devices.
          dtype: of the matrix products.
          device_kind: whose published speeds to reckon with.
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
        """What a call costs.

        The traffic of a GPU's program is counted in its text. XLA's cost analysis tells that of
        other devices, but for the whole program and with a loop of unknown length as if it ran
        once: of a part, or with more rounds, it is taken to grow as the traffic counted in the text
        does.

        Args:
          flops: of the call on each device, which the text does not tell.
          starts: names of the computations that are called; none: the whole program.
          unknown_trips: taken for loops whose length XLA does not know.
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
