"""What a compiled program runs on a GPU, kernel by kernel, and the memory that each touches.

XLA gives no cost analysis of a program for a GPU that is not there, so its text is counted.
"""

from __future__ import annotations

import collections
import re
from typing import NamedTuple

from jaxformer.parallel.hlo_text import (
    Instruction,
    operands,
    read_computations,
    shape_bytes,
    trip_count,
)

# They only name what is there, or are done by the host.
NO_KERNEL = (
    "after-all", "bitcast", "constant", "get-tuple-element", "opt-barrier", "parameter",
    "partition-id", "replica-id", "tuple", "copy-done", "async-done", "async-update",
)  # fmt: skip
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
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


def read_kernels(text: str, *, unknown_trips: int = 1) -> list[Kernel]:
    """The kernels of one call of a program by kind; those in loops as often as the loop runs.

    A kernel reads each operand once and writes its result once: of a table from which it only cuts
    or gathers rows, the rows; of an array that it updates in place, the update.

    Args:
      text: of `jax.stages.Compiled.as_text()`.
      unknown_trips: taken for loops whose length XLA does not know.

    Returns:
      The kind with most bytes first.

    Raises:
      ValueError: the text has no entry computation.
    """
    computations, entry = read_computations(text)
    counts: collections.Counter = collections.Counter()
    accessed: collections.Counter = collections.Counter()

    def visit(name: str, times: int) -> None:
        shapes = {line.name: line.shape for line in computations.get(name, ())}
        for line in computations.get(name, ()):
            called = _called(line)
            if line.opcode == "while":
                visit(called, times * (trip_count(line.rest, computations) or unknown_trips))
            elif line.opcode in ("call", "async-start") and called in computations:
                visit(called, times)
            elif line.opcode == "conditional":
                visit(called, times)  # the first branch stands for all
            elif line.opcode not in NO_KERNEL and not line.opcode.endswith("-done"):
                kind = kernel_kind(line)
                counts[kind] += times
                accessed[kind] += times * _accessed(line, shapes, computations)

    visit(entry, 1)
    kernels = [Kernel(kind, count, accessed[kind]) for kind, count in counts.items()]
    return sorted(kernels, key=lambda kernel: (-kernel.accessed, kernel.kind))


def _called(line: Instruction) -> str:
    found = re.search(
        r"\b(?:body|calls|to_apply|true_computation|branch_computations)=\{?%?([\w.\-]+)", line.rest
    )
    return found[1] if found else ""


def kernel_kind(line: Instruction) -> str:
    """What an instruction of a GPU program is, in words."""
    if line.opcode.removesuffix("-start") in COLLECTIVES:
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
    inner = computations.get(_called(line), ()) if line.opcode == "fusion" else ()
    parts = _read_in_part(inner)
    read = sum(
        parts.get(place, sum(shape_bytes(shapes.get(name, ""))))
        for place, name in enumerate(operands(line))
    )
    return read + _written(line, inner)


def _read_in_part(inner) -> dict[int, int]:
    """By their place, the operands of a fusion of which only a part is read: its bytes."""
    users: dict[str, list[Instruction]] = {}
    for line in inner:
        for name in operands(line):
            users.setdefault(name, []).append(line)
    found = {}
    for line in inner:
        if line.opcode != "parameter":
            continue
        reading = users.get(line.name, [])
        if reading and all(_takes_a_part(user, line.name) for user in reading):
            place = int(re.match(r"(\d+)", line.rest)[1])
            found[place] = sum(
                sum(shape_bytes(user.shape)) for user in reading if user.opcode in READS_A_PART
            )
    return found


def _takes_a_part(user: Instruction, name: str) -> bool:
    """Whether an instruction reads only a part of an array, or updates a part of it in place."""
    if user.opcode == "dynamic-update-slice":
        return operands(user)[0] == name
    return user.opcode in READS_A_PART and operands(user)[0] == name


def _written(line: Instruction, inner) -> int:
    """Bytes of the result; of an array that is updated in place, those of the update."""
    if inner and inner[-1].opcode == "dynamic-update-slice":
        shapes = {each.name: each.shape for each in inner}
        return sum(shape_bytes(shapes.get(operands(inner[-1])[1], "")))
    return sum(shape_bytes(line.shape))
