"""Where the time of a step goes: a profile of jaxformer's step, grouped by kind of operation.

The profiler names the operations that ran; the compiled program says what each of them is. If
several run at once, each gets its share of the time, so that the parts sum to the step.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from tables import markdown_table

from training_speed import jaxformer_trainer
from training_speed.report import machine
from training_speed.shapes import SHAPES, Shape, pin_to_cores, product_flops, step_flops

CONTAINERS = {"while", "conditional", "call"}  # their bodies' operations are in the profile too
SMALL = 1024  # elements
VOCABULARY = "products with the vocabulary"
LOSS = "softmax and loss over the vocabulary"
LAYERS = "products with the weights of the layers"
ATTENTION = "products of attention (scores, weighted values)"
DROPOUT = "dropout, with what is fused to it"
EMBEDDING = "look-up of embeddings and its gradient"
COPIES = "copies and transposes, with what is fused to them"
OPTIMIZER = "optimizer and gradient norm"
SOFTMAX = "softmax and masks of attention"
NORM = "LayerNorm"
ELEMENTWISE = "other element-wise: biases, ReLU, residuals"
SCALARS = "random keys and other scalars"
NOTHING = "no operation running"
PARTS = (VOCABULARY, LOSS, LAYERS, ATTENTION, SOFTMAX, DROPOUT, NORM, ELEMENTWISE, COPIES)
PARTS += (EMBEDDING, OPTIMIZER, SCALARS, NOTHING)
FLOPS_OF = {VOCABULARY: "vocabulary", LAYERS: "layers", ATTENTION: "attention"}


class Operation(NamedTuple):
    """An operation of the compiled program, with everything fused into it.

    Attributes:
      opcodes: its own and those fused into it.
      shapes: dimensions of every array in it.
      scope: where in the Python code it comes from.
      batched: it has a matrix product with batch dimensions.
      hashes: it mixes bits of a large array, as dropout does.
    """

    opcodes: set[str]
    shapes: set[tuple[int, ...]]
    scope: str
    batched: bool
    hashes: bool


class Instruction(NamedTuple):
    """A line of the program's text."""

    result: str
    opcode: str
    rest: str

    def shapes(self) -> set[tuple[int, ...]]:
        found = re.findall(r"\[([\d,]*)\]", self.result)
        return {tuple(int(size) for size in dims.split(",") if size) for dims in found}


def read_program(text: str) -> dict[str, Operation]:
    """Operations of a program in XLA's text form, by name."""
    instructions: dict[str, Instruction] = {}
    members: dict[str, list[str]] = defaultdict(list)
    computation = ""
    for line in text.split("\n"):
        if line.endswith("{") and not line.startswith(" "):
            computation = line.removeprefix("ENTRY ").split()[0].lstrip("%")
        elif match := re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$", line):
            instructions[match[1]] = Instruction(*match.groups()[1:])
            members[computation].append(match[1])
    return {name: describe(name, instructions, members) for name in instructions}


def describe(
    name: str, instructions: dict[str, Instruction], members: dict[str, list[str]]
) -> Operation:
    own = instructions[name]
    inner = [own]
    called = re.search(r"calls=%([\w.\-]+)", own.rest)
    if called and own.opcode == "fusion":
        inner += [instructions[member] for member in members[called[1]]]
    operands = re.findall(r"%([\w.\-]+)", own.rest.partition("metadata=")[0])
    scope = re.search(r'op_name="([^"]*)"', own.rest)
    shapes: set[tuple[int, ...]] = set()
    for instruction in [*inner, *(instructions[x] for x in operands if x in instructions)]:
        shapes |= instruction.shapes()
    return Operation(
        opcodes={instruction.opcode for instruction in inner},
        shapes=shapes,
        scope=scope[1] if scope else "",
        batched=any("lhs_batch_dims={0" in x.rest for x in inner if x.opcode == "dot"),
        hashes=any(
            math.prod(dims) > SMALL for x in inner if x.opcode == "xor" for dims in x.shapes()
        ),
    )


def part_of(operation: Operation, shape: Shape) -> str:
    """The part of a step that an operation belongs to.

    Logits are recognised by their dimensions: the vocabulary in an array that is neither the
    embedding table nor a vector.
    """
    opcodes = operation.opcodes
    vocabulary, width = shape.vocab_size, shape.d_model
    not_logits = {vocabulary, vocabulary * width, vocabulary * width * 2}
    logits = any(
        vocabulary in dims and math.prod(dims) not in not_logits for dims in operation.shapes
    )
    if opcodes & {"dot", "convolution"}:
        if logits:
            return VOCABULARY
        return ATTENTION if operation.batched else LAYERS
    if max((math.prod(dims) for dims in operation.shapes), default=0) <= SMALL:
        return SCALARS
    if logits:
        return LOSS
    if operation.hashes:
        return DROPOUT
    if opcodes & {"gather", "scatter"}:
        return EMBEDDING
    if opcodes & {"copy", "transpose"}:
        return COPIES
    if "Transformer" not in operation.scope:
        return OPTIMIZER
    if "_norm/" in operation.scope:
        return NORM
    return SOFTMAX if "_attention/" in operation.scope else ELEMENTWISE


def share_time(events: list[tuple[int, int, str]], containers: set[str]) -> Counter:
    """Seconds by operation: at each moment the running ones share the time equally.

    Args:
      events: (start, end, operation) in ns.
      containers: operations that count only while nothing else runs.
    """
    edges = sorted(
        edge for start, end, name in events for edge in ((start, 1, name), (end, -1, name))
    )
    shares: Counter = Counter()
    running: Counter = Counter()
    before = edges[0][0]
    for now, change, name in edges:
        active = +running
        leaves = [x for x in active if x not in containers] or list(active)
        for leaf in leaves or [NOTHING]:
            shares[leaf] += (now - before) / max(len(leaves), 1) / 1e9
        running[name] += change
        before = now
    return shares


def profile_step(shape: Shape, steps: int) -> tuple[Counter, float, float]:
    """Seconds of a step by part, in total as profiled, and in total without the profiler."""
    import jax

    train_step, state, batch, key = jaxformer_trainer.prepare_step(shape)
    compiled = train_step.lower(state, batch, key).compile()
    operations = read_program(compiled.as_text())

    def run(state: Any, count: int):
        for _ in range(count):
            state, _ = compiled(state, batch, key)
        return jax.block_until_ready(state)

    state = run(state, 3)
    started = time.perf_counter()
    state = run(state, steps)
    plain = (time.perf_counter() - started) / steps
    with tempfile.TemporaryDirectory(prefix="jaxformer-benchmark-") as folder:
        with jax.profiler.trace(folder):
            run(state, steps)
        (trace,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(trace))
    events = [
        (int(event.start_ns), int(event.start_ns + event.duration_ns), name)
        for plane in profile.planes
        for line in plane.lines
        for event in line.events
        if (name := dict(event.stats).get("hlo_op")) in operations
    ]
    containers = {name for name, op in operations.items() if op.opcodes <= CONTAINERS}
    seconds = {name: x / steps for name, x in share_time(events, containers).items()}
    parts: Counter = Counter()
    for name, value in seconds.items():
        parts[NOTHING if name == NOTHING else part_of(operations[name], shape)] += value
    return parts, sum(parts.values()), plain


def parts_report(shape_name: str, steps: int) -> str:
    cores = pin_to_cores()
    os.environ.update(jaxformer_trainer.ENVIRONMENT)  # before JAX is imported
    import jax

    import jaxformer

    shape = SHAPES[shape_name]
    peak = jaxformer_trainer.xla_peak()
    parts, total, plain = profile_step(shape, steps)
    flops = product_flops(shape)
    rows = []
    for part in PARTS:
        row = [part, f"{1000 * parts[part]:.1f}", f"{parts[part] / total:.1%}"]
        rate = flops[FLOPS_OF[part]] / parts[part] if part in FLOPS_OF else 0.0
        rows.append([*row, *([f"{rate / 1e9:.1f}", f"{rate / peak:.0%}"] if rate else ["", ""])])
    rate = step_flops(shape) / total
    rows.append(["the step", f"{1000 * total:.1f}", "", f"{rate / 1e9:.1f}", f"{rate / peak:.0%}"])
    versions = f"jaxformer {jaxformer.__version__}, jax {jax.__version__}"
    return f"""\
`python benchmarks/train.py --where --steps={steps} --shapes {shape_name}`

{machine(cores, [versions])}

{markdown_table([f"{shape_name}, part of a step", "ms", "share", "GFLOP/s", "of the peak"], rows)}

Means of {steps} profiled steps; {1000 * plain:.1f} ms a step without the profiler. Peak: XLA's
fastest float32 product of square matrices just before, {peak / 1e9:.1f} GFLOP/s.
"""
