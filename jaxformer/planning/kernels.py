"""The kernels of a compiled GPU program, and the memory that each accesses.

XLA has no cost analysis for programs of absent GPUs, so they are counted in the HLO text.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxformer.planning.collectives import SHARE_SENT
from jaxformer.planning.hlo_text import (
    RUNS_OTHERS,
    Instruction,
    called,
    operands,
    read_computations,
    shape_bytes,
    tally,
)

# These only rename arrays, or run on the host.
NO_KERNEL = (
    "after-all", "bitcast", "constant", "get-tuple-element", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple", "copy-done", "async-done", "async-update",
)  # fmt: skip
READS_A_PART = ("dynamic-slice", "gather", "slice")


class Kernel(NamedTuple):
    """Kernels of one kind in one call of a program.

    Attributes:
      kind: `product`, `attention`, `reduction`, `loop fusion`, `collective`, ...
      count: launches.
      accessed: bytes read and written by all of them.
    """

    kind: str
    count: int
    accessed: int


def read_kernels(text: str, *, starts: Sequence[str] = (), unknown_trips: int = 1) -> list[Kernel]:
    """The kernels of one call of a program by kind; those in loops count for every iteration.

    A kernel reads each operand once and writes its result once. Of a table from which it only
    slices or gathers rows, the rows count; of an array that it updates in place, the update.

    Args:
      text: of `jax.stages.Compiled.as_text()`.
      starts: names of the computations to start from, such as a loop's body; none: the entry.
      unknown_trips: number of iterations assumed for loops whose length XLA does not know.

    Returns:
      One entry per kind, most bytes first.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations, entry = read_computations(text)

    def own(name: str) -> collections.Counter:
        shapes = {line.name: line.shape for line in computations.get(name, ())}
        return collections.Counter(
            (kernel_kind(line), _accessed(line, shapes, computations))
            for line in computations.get(name, ())
            if line.opcode not in NO_KERNEL + RUNS_OTHERS and not line.opcode.endswith("-done")
        )

    def traffic(kernels: collections.Counter) -> int:
        return sum(accessed * count for (_, accessed), count in kernels.items())

    counts: collections.Counter = collections.Counter()
    bytes_of: collections.Counter = collections.Counter()
    total = tally(computations, starts or [entry], own, traffic, unknown_trips=unknown_trips)
    for (kind, accessed), count in total.items():
        counts[kind] += count
        bytes_of[kind] += accessed * count
    kernels = [Kernel(kind, count, bytes_of[kind]) for kind, count in counts.items()]
    return sorted(kernels, key=lambda kernel: (-kernel.accessed, kernel.kind))


def kernel_kind(line: Instruction) -> str:
    """The kind of kernel that an instruction of a GPU program is."""
    if line.opcode.removesuffix("-start") in SHARE_SENT:
        return "collective"
    if line.opcode == "custom-call":
        target = re.search(r'custom_call_target="([^"]+)"', line.rest)
        if "fmha" in target[1]:
            return "attention"
        return "product" if "gemm" in target[1] or "matmul" in target[1] else target[1]
    if line.opcode == "dot":
        return "product"
    if line.opcode != "fusion":
        return line.opcode
    if re.search(r'"kind":"\w*gemm\w*"', line.rest):
        return "product"
    if re.search(r'"kind":"__triton\w*"', line.rest):
        return "Triton fusion"
    kind = re.search(r"\bkind=(k\w+)", line.rest)
    return {"kLoop": "loop fusion", "kInput": "reduction"}.get(kind and kind[1], "other fusion")


def _accessed(line: Instruction, shapes: dict[str, str], computations) -> int:
    """Bytes that one run of a kernel reads and writes."""
    inner = computations.get(called(line, "calls"), ()) if line.opcode == "fusion" else ()
    parts = _read_in_part(inner)
    read = sum(
        parts.get(place, sum(shape_bytes(shapes.get(name, ""))))
        for place, name in enumerate(operands(line))
    )
    return read + _written(line, inner)


def _read_in_part(inner) -> dict[int, int]:
    """The operands of a fusion that are only read in part: their bytes by operand number."""
    users: dict[str, list[Instruction]] = {}
    for line in inner:
        for name in operands(line):
            users.setdefault(name, []).append(line)
    updated = {line.name for line in _results(inner) if line.opcode == "dynamic-update-slice"}
    found = {}
    for line in inner:
        if line.opcode != "parameter":
            continue
        reading = _readers(line.name, users)
        if reading and all(
            operands(user)[0] == name and (user.opcode in READS_A_PART or user.name in updated)
            for name, user in reading
        ):
            place = int(re.match(r"(\d+)", line.rest)[1])
            found[place] = sum(
                sum(shape_bytes(user.shape)) for _, user in reading if user.opcode in READS_A_PART
            )
    return found


def _readers(name: str, users: dict[str, list[Instruction]]) -> list[tuple[str, Instruction]]:
    """What reads an array within a fusion, and under which name: a bitcast gives it another."""
    found = []
    for user in users.get(name, ()):
        found += _readers(user.name, users) if user.opcode == "bitcast" else [(name, user)]
    return found


def _results(inner) -> list[Instruction]:
    """The instructions that compute the results of a fusion, before any bitcast."""
    if not inner:
        return []
    lines = {line.name: line for line in inner}
    roots = [inner[-1]]
    if inner[-1].opcode == "tuple":
        roots = [lines[name] for name in operands(inner[-1])]
    for index, root in enumerate(roots):
        while root.opcode == "bitcast":
            root = lines[operands(root)[0]]
        roots[index] = root
    return roots


def _written(line: Instruction, inner) -> int:
    """Bytes of the results; of an array updated in place, those of the update."""
    shapes = {each.name: each.shape for each in inner}
    results = _results(inner)
    if not results:
        return sum(shape_bytes(line.shape))
    return sum(
        sum(shape_bytes(shapes[operands(root)[1]]))
        if root.opcode == "dynamic-update-slice"
        else sum(shape_bytes(root.shape))
        for root in results
    )
