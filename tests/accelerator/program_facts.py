"""What a compiled program does that the matrix asserts on, read from XLA's text of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from jaxformer.planning.collectives import SHARE_SENT, Collective, read_group
from jaxformer.planning.hlo_text import Instruction, operands, read_computations

PRODUCTS = ("dot", "convolution")  # a TPU's products are convolutions
# Custom calls by a name or a target: cuDNN's attention on a GPU, splash on a TPU.
FUSED_FORWARD = r"__cudnn\$fmha\w*Softmax\"|splash_mha_fwd"
FUSED_BACKWARD = r"__cudnn\$fmha\w*SoftmaxBackward\"|splash_mha_dkv"
ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
FEW = 100  # numbers; scalars that are sent together make a vector of any length


def count_fused(text: str) -> dict[str, int]:
    """Calls of fused attention in a program: `forward` and `backward`."""
    names = [f"{line.name} {line.rest}" for line, _ in _lines(text) if line.opcode == "custom-call"]
    return {
        "forward": sum(bool(re.search(FUSED_FORWARD, name)) for name in names),
        "backward": sum(bool(re.search(FUSED_BACKWARD, name)) for name in names),
    }


def read_products(text: str) -> list[tuple[str, str]]:
    """Matrix products: what is multiplied, `bf16[8,4] x bf16[4,2]`, and for what."""
    found = []
    for line, shapes in _lines(text):
        library = line.opcode == "custom-call" and re.search(r"gemm|matmul", line.rest)
        if line.opcode in PRODUCTS or library:
            arrays = [shapes.get(name, "").partition("{")[0] for name in operands(line)[:2]]
            name = re.search(r'op_name="([^"]*)"', line.rest)
            found.append((" x ".join(arrays), name[1] if name else line.name))
    return found


def moved_rows(text: str, mesh_shape: dict[str, int], marker: int) -> list[tuple]:
    """Messages along other axes than `tensor` alone that carry numbers of the batch's rows.

    Args:
      text: of the program.
      mesh_shape: devices by axis.
      marker: divides the rows, and no axis of a parameter.

    Returns:
      `(kind, axes, array)` of each message, in the program's order; integers are left out.
    """
    found, channels = [], set()
    for line, _ in _lines(text):
        kind = line.opcode.removesuffix("-start")
        channel = re.search(r"\bchannel_id=(\d+)", line.rest)
        if kind not in SHARE_SENT or (channel and (kind, channel[1]) in channels):
            continue  # a TPU names a message again in each part of it
        channels.add((kind, channel and channel[1]))
        group = read_group(line.rest, math.prod(mesh_shape.values()))
        axes = Collective(kind, group, 0, 1).axes(mesh_shape)
        arrays = [array for array in ARRAY.findall(line.shape) if _has_rows(kind, *array, marker)]
        if arrays and axes not in ((), ("tensor",)):
            found.append((kind, list(axes), "{}[{}]".format(*arrays[-1])))
    return found


def _has_rows(kind: str, dtype: str, sizes: str, marker: int) -> bool:
    axes = [int(size) for size in sizes.split(",") if size]
    if kind == "all-reduce" and len(axes) == 1:
        return False  # XLA for GPUs puts gradients end to end before it sums them
    return "f" in dtype and math.prod(axes) > FEW and any(axis % marker == 0 for axis in axes)


def _lines(text: str) -> Iterator[tuple[Instruction, dict[str, str]]]:
    """Every instruction of a program, with the shapes of its computation by name."""
    for lines in read_computations(text)[0].values():
        shapes = {line.name: line.shape for line in lines}
        for line in lines:
            yield line, shapes
