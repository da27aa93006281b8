"""The HLO text of a compiled program: computations, instructions, and trip counts of loops."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

RUNS_OTHERS = ("while", "conditional", "call", "async-start")  # only run other computations
BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}  # other names tell: bf16, s32


class Instruction(NamedTuple):
    """A line of a computation: `%name = shape opcode(operands), attributes`."""

    name: str
    shape: str
    opcode: str
    rest: str


def read_computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Instructions by the name of their computation, and the name of the entry."""
    computations: dict[str, list[Instruction]] = {}
    entry, lines = "", []
    for line in text.split("\n"):
        if header := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{\s*$", line):
            computations[header[2]] = lines = []
            entry = header[2] if header[1] else entry
        elif instruction := _read_instruction(line):
            lines.append(instruction)
    if not entry:
        raise ValueError("the text of the program has no ENTRY computation")
    return computations, entry


def _read_instruction(line: str) -> Instruction | None:
    start = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
    if not start:
        return None
    rest = line[start.end() :]
    end = _closing(rest) + 1 if rest.startswith("(") else rest.find(" ")
    call = re.match(r"\s*([\w\-]+)\(", rest[end:])
    return Instruction(start[1], rest[:end], call[1], rest[end + call.end() :]) if call else None


def _closing(text: str) -> int:
    """Index of the parenthesis that closes the one `text` begins with."""
    depth = 0
    for index, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return index
    return len(text)


def tally(
    computations: dict[str, list[Instruction]],
    starts: Iterable[str],
    own: Callable[[str], collections.Counter],
    price: Callable[[collections.Counter], float],
    *,
    unknown_trips: int = 1,
) -> collections.Counter:
    """Sum of what calls of `starts` do, including all computations that they run.

    A loop runs its body, and also its condition if its length is unknown. Only one branch of a
    conditional runs: the most expensive one counts.

    Args:
      computations: from `read_computations`.
      starts: names of the computations to start from.
      own: by name, what the instructions of a computation do themselves, without those of
        `RUNS_OTHERS`.
      price: of a sum, to compare branches.
      unknown_trips: number of iterations assumed for loops whose length XLA does not know.

    Returns:
      The sum over all computations, each multiplied by the number of times it runs.
    """
    known: dict[str, collections.Counter] = {}

    def visit(name: str) -> collections.Counter:
        if name not in known:
            total = collections.Counter(own(name))
            for line in computations.get(name, ()):
                for called, times in _runs(line, computations, unknown_trips):
                    for key, count in max(map(visit, called), key=price).items():
                        total[key] += count * times
            known[name] = total
        return known[name]

    return sum(map(visit, starts), collections.Counter())


def _runs(line: Instruction, computations, unknown_trips: int) -> list[tuple[list[str], int]]:
    """What an instruction runs: alternative computations, one of which runs, and how often."""
    if line.opcode == "while":
        trips = trip_count(line.rest, computations)
        body, condition = [called(line, "body")], [called(line, "condition")]
        if trips is None:
            return [(body, unknown_trips), (condition, unknown_trips)]
        return [(body, trips)]
    if line.opcode == "conditional":
        listed = re.search(r"\bbranch_computations=\{([^}]*)\}", line.rest)
        names = re.findall(r"[\w.\-]+", listed[1]) if listed else []
        names += re.findall(r"\b(?:true|false)_computation=%?([\w.\-]+)", line.rest)
        return [(names, 1)]
    if line.opcode in RUNS_OTHERS:
        return [([called(line, "calls|to_apply")], 1)]
    return []


def called(line: Instruction, attribute: str) -> str:
    """The computation that an attribute names (a pattern: `calls|to_apply`); empty if none."""
    found = re.search(rf"\b(?:{attribute})=%?([\w.\-]+)", line.rest)
    return found[1] if found else ""


def open_loops(computations: dict[str, list[Instruction]], start: str) -> list[Instruction]:
    """The loops of unknown length in a computation and its calls."""
    found = []
    for line in computations.get(start, ()):
        if line.opcode == "while" and trip_count(line.rest, computations) is None:
            found.append(line)
        elif line.opcode in ("call", "async-start"):
            found += open_loops(computations, called(line, "calls|to_apply"))
    return found


def trip_count(rest: str, computations) -> int | None:
    """How often a loop runs: from XLA's annotation, or its condition `counter < constant` from 0.

    None if unknown, because the condition depends on more than a counter.
    """
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', rest):
        return int(known[1])
    names = (re.search(rf"\b{part}=%?([\w.\-]+)", rest)[1] for part in ("condition", "body"))
    condition, body = (computations.get(name, ()) for name in names)
    constants = _constants(condition)
    for line in condition[-1:]:  # the result
        if line.opcode == "compare" and "direction=LT" in line.rest:
            counter, end = operands(line)
            if end in constants:
                return -(-constants[end] // _increment(counter, condition, body))
    return None


def _constants(computation) -> dict[str, int]:
    return {
        line.name: int(value[1])
        for line in computation
        if line.opcode == "constant" and (value := re.match(r"(\d+)\)", line.rest))
    }


def _increment(counter: str, condition, body) -> int:
    """What an iteration adds to a loop's counter: XLA's unrolling factor."""
    place = re.search(r"\bindex=(\d+)", {line.name: line for line in condition}[counter].rest)
    values = operands(body[-1]) if body else []  # of the next iteration
    if not place or int(place[1]) >= len(values):
        return 1
    following = {line.name: line for line in body}.get(values[int(place[1])])
    if following is None or following.opcode != "add":
        return 1
    constants = _constants(body)
    return next((constants[name] for name in operands(following) if name in constants), 1)


def operands(instruction: Instruction) -> list[str]:
    """Names of an instruction's operands."""
    return re.findall(
        r"([\w.\-]+)(?:,|$)", instruction.rest[: _closing("(" + instruction.rest) - 1]
    )


def shape_bytes(shape: str) -> list[int]:
    """Bytes of each array of a shape such as `(f32[8,4]{1,0:T(8,128)}, bf16[])`."""
    return [
        -(-_bits(dtype) * math.prod(int(n) for n in re.findall(r"\d+", sizes)) // 8)
        for dtype, sizes in re.findall(r"\b([a-z]+\d*\w*)\[([\d,<=]*)\]", shape)
    ]


def _bits(dtype: str) -> int:
    return BITS[dtype] if dtype in BITS else int(re.search(r"\d+", dtype)[0])
