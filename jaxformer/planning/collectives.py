"""What a compiled program sends between devices, read from its HLO text."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxformer.planning.hlo_text import (
    Instruction,
    called,
    read_computations,
    shape_bytes,
    tally,
)

# Bytes that a device sends by a ring algorithm, relative to the whole array; n devices.
SHARE_SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
    "collective-broadcast": lambda n: 1.0,
}
# A TPU's reduce-scatter is a fusion of an all-reduce and the slice that follows.
SCATTER_FUSION = "all-reduce-scatter"
# Marks the first piece of a collective that runs in pieces.
CHAIN_START = 'custom_call_target="AsyncCollectiveStart"'
CHANNEL = re.compile(r"\bchannel_id=(\d+)")
IOTA = r"\[([\d,]+)\](?:T\(([\d,]+)\))?"
MESH_GROUPS = rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({IOTA}\))? ?\{{([^}}]*)\}}"


class Collective(NamedTuple):
    """One kind of message between the devices of a group.

    Attributes:
      kind: a key of `SHARE_SENT`.
      group: positions, in the program's flat list of devices, of those that communicate; all other
        groups do the same at the same time.
      size: bytes of the whole array, summed or gathered.
      count: number of times in one call of the program.
    """

    kind: str
    group: tuple[int, ...]
    size: int
    count: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends in one call of the program, by ring algorithms."""
        return SHARE_SENT[self.kind](len(self.group)) * self.size * self.count

    def axes(self, mesh_shape: dict[str, int]) -> tuple[str, ...]:
        """Names of the mesh axes along which the devices of the group differ."""
        places = np.unravel_index(self.group, tuple(mesh_shape.values()))
        return tuple(
            name
            for name, along in zip(mesh_shape, places, strict=True)
            if len(set(along.tolist())) > 1
        )


def read_collectives(
    text: str, devices: int, *, starts: Sequence[str] = (), unknown_trips: int = 1
) -> list[Collective]:
    """The collectives of one call of a program; those in loops count for every iteration.

    Args:
      text: of `jax.stages.Compiled.as_text()`.
      devices: number of devices that run the program.
      starts: names of the computations to start from, such as a loop's body; none: the entry.
      unknown_trips: number of iterations assumed for loops whose length XLA does not know.

    Returns:
      Equal ones are counted together; the largest senders come first. Groups of one device are
      omitted.

    Raises:
      ValueError: the text has no entry computation, or groups in an unknown notation.
    """
    computations, entry = read_computations(text)
    chains = _chain_starts(computations)

    def own(name: str) -> collections.Counter:
        total: collections.Counter = collections.Counter()
        seen: set[tuple] = set()
        for instruction in computations.get(name, ()):
            total.update(_own(instruction, devices))
            total.update(_fused(instruction, computations, devices, seen, chains))
        return total

    def sent(messages: collections.Counter) -> float:
        return sum(Collective(*key, count).sent for key, count in messages.items())

    total = tally(computations, starts or [entry], own, sent, unknown_trips=unknown_trips)
    found = [Collective(*key, count) for key, count in total.items()]
    return sorted(found, key=lambda c: (-c.sent, c.kind, c.group, c.size))


def _own(instruction: Instruction, devices: int) -> collections.Counter:
    """The collective that an instruction is, `{(kind, group, size): 1}`, or none."""
    kind, starts = instruction.opcode.removesuffix("-start"), instruction.opcode.endswith("-start")
    group = read_group(instruction.rest, devices) if kind in SHARE_SENT else ()
    if len(group) < 2:
        return collections.Counter()
    shapes = shape_bytes(instruction.shape)
    if starts and kind != "all-reduce":  # operands, results, and sometimes two counters
        shapes = [size for size in shapes if size > 4] or shapes
        shapes = shapes[len(shapes) // 2 :]
    size = sum(shapes) * (len(group) if kind == "reduce-scatter" else 1)
    return collections.Counter({(kind, group, size): 1})


def _chain_starts(computations) -> dict[str, str]:
    """By channel, the computation that starts a chain; its other pieces may be in loops."""
    return {
        channel[1]: name
        for name, instructions in computations.items()
        if any(CHAIN_START in instruction.rest for instruction in instructions)
        for instruction in instructions
        if (channel := CHANNEL.search(instruction.rest))
    }


def _fused(
    instruction: Instruction, computations, devices: int, seen: set[tuple], chains: dict[str, str]
) -> collections.Counter:
    """Collectives within a fusion.

    A TPU overlaps a collective with computation by running it in pieces: its start, some fusions
    and its end all name it, with one channel. If the start is marked, in `chains`, only it counts;
    else the first one in the calling computation, whose channels so far are in `seen`.
    """
    total: collections.Counter = collections.Counter()
    fused = called(instruction, "calls")
    if instruction.opcode != "fusion" or not fused:
        return total
    for inner in computations.get(fused, ()):
        total.update(_fused(inner, computations, devices, seen, chains))
        found = CHANNEL.search(inner.rest)
        channel = found and found[1]
        for key in _own(inner, devices):
            if fused.startswith(SCATTER_FUSION):
                total["reduce-scatter", *key[1:]] += 1
            elif chains.get(channel, fused) != fused or (channel, key) in seen:
                continue
            else:
                total[key] += 1
                if channel:
                    seen.add((channel, key))
    return total


def read_group(attributes: str, devices: int) -> tuple[int, ...]:
    """The devices of the first group of a collective.

    Args:
      attributes: of its line, with `replica_groups` as `{{0,1},{2,3}}`, as `[2,2]<=[2,2]T(1,0)` or
        as `mesh['a'=2,'b'=2] {'a'}`; or with `source_target_pairs`.
      devices: number of devices of the program, which all form the group of an empty list.

    Returns:
      Positions in the program's flat list of devices.

    Raises:
      ValueError: the notation is unknown.
    """
    if pairs := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", attributes):
        return tuple(sorted({int(pairs[1]), int(pairs[2])}))
    if listed := re.search(r"replica_groups=\{(?:\{([\d,]*)\})?", attributes):
        numbers = re.findall(r"\d+", listed[1] or "")
        return tuple(map(int, numbers)) if numbers else tuple(range(devices))
    if iota := re.search(rf"replica_groups=\[(\d+),(\d+)\]<={IOTA}", attributes):
        ids = _read_iota(iota[3], iota[4]).reshape(int(iota[1]), int(iota[2]))
        return tuple(ids[0].tolist())
    if mesh := re.search(MESH_GROUPS, attributes):
        order = _read_iota(mesh[2], mesh[3]) if mesh[2] else None
        return _read_mesh_group(mesh[1], mesh[4], order)
    groups = re.search(r"replica_groups=.{0,60}", attributes)
    raise ValueError(f"unknown notation of a collective's devices: {groups and groups[0]!r}")


def _read_iota(sizes: str, order: str | None) -> np.ndarray:
    """`[4,2]T(1,0)`: 0, 1, ... laid out as `[4, 2]`, then transposed and flattened."""
    shape = [int(n) for n in sizes.split(",")]
    axes = [int(n) for n in order.split(",")] if order else range(len(shape))
    return np.arange(math.prod(shape)).reshape(shape).transpose(axes).reshape(-1)


def _read_mesh_group(axes: str, named: str, order: np.ndarray | None) -> tuple[int, ...]:
    """First group of `'a'=8,'b'=2` along the `named` axes.

    `'a':(1)4` names the factor 4 of `a` after a first factor of 1. `order` lists the devices of the
    mesh if they are not 0, 1, ...
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", axes)}
    strides, stride = {}, 1
    for name in reversed(sizes):
        strides[name], stride = stride, stride * sizes[name]
    group = np.zeros(1, np.int64)
    for name, before, part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", named):
        size = int(part) if part else sizes[name]
        step = strides[name] * sizes[name] // (int(before or 1) * size)
        group = (group[:, None] + step * np.arange(size)).reshape(-1)
    return tuple((group if order is None else order[group]).tolist())
