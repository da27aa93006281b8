"""What the compile matrix compiles: combinations of options in which every allowed pair occurs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

FACTORS = {
    "devices": (1, 8, 16),
    "mesh": ("data", "fsdp", "tensor", "all"),
    "dtype": ("bfloat16", "float32"),
    "batching": ("buckets", "packed"),
    "remat": ("off", "projections", "nothing"),
    "accumulation": (1, 2),
    "program": ("train", "evaluation", "greedy", "beam"),
}
REMAT = FACTORS["remat"]
TPUS = {1: "v5e:2x2", 8: "v5e:2x4", 16: "v5e:4x4"}  # libtpu knows no slice below a host of four


@dataclasses.dataclass(frozen=True)
class Combination:
    """One program to compile.

    Attributes:
      chip: a GPU of gpus.toml, or `v5e`.
      devices: 16 are two nodes of eight, or a slice of 4x4.
      mesh: the axes along which the devices lie; `all`: data, fsdp and tensor.
      dtype: of the computation.
      batching: `buckets` or `packed`.
      remat: `off`, or a policy of `model.remat_policy`.
      accumulation: `optimizer.accumulation_steps`.
      program: `train`, `evaluation`, `greedy` or `beam`.
      model: `matrix`; `deep`, with activations that a TPU's on-chip memory does not hold; or a
        preset at its real size.
    """

    chip: str
    devices: int
    mesh: str
    dtype: str = "bfloat16"
    batching: str = "buckets"
    remat: str = "off"
    accumulation: int = 1
    program: str = "train"
    model: str = "matrix"

    def __str__(self) -> str:
        return "-".join(str(value) for value in dataclasses.astuple(self)).removesuffix("-matrix")

    @property
    def platform(self) -> str:
        return "tpu" if self.chip == "v5e" else "gpu"

    @property
    def topology(self) -> str:
        if self.platform == "tpu":
            return TPUS[self.devices]
        return f"{self.chip}:{'2x8' if self.devices == 16 else self.devices}"

    @property
    def sizes(self) -> dict[str, int]:
        """Devices along each axis of the mesh."""
        count = self.devices
        data, fsdp, tensor = {
            "data": (count, 1, 1),
            "fsdp": (1, count, 1),
            "tensor": (count // 4, 1, 4),
            "all": (count // 4, 2, 2),
        }[self.mesh]
        return {"data": data, "fsdp": fsdp, "tensor": tensor}

    @property
    def pairs(self) -> set[tuple]:
        """Each two options of it."""
        options = [(name, getattr(self, name)) for name in FACTORS]
        return set(itertools.combinations(options, 2))


def is_allowed(one: Combination) -> bool:
    """Whether a combination is a program of its own."""
    if one.devices == 1 and one.mesh != "data":
        return False  # nothing to cut
    if one.program != "train" and (one.remat, one.accumulation) != ("off", 1):
        return False  # only a gradient is accumulated, only its activations computed again
    return one.program in ("train", "evaluation") or one.batching == "buckets"


def allowed_combinations(chip: str) -> list[Combination]:
    """All of them, several hundred."""
    options = itertools.product(*FACTORS.values())
    every = (Combination(chip, **dict(zip(FACTORS, values, strict=True))) for values in options)
    return [one for one in every if is_allowed(one)]


def remat_family(one: Combination) -> list[Combination]:
    """The same program with activations kept, and computed again by each policy."""
    return [dataclasses.replace(one, remat=remat) for remat in REMAT]


def pairwise(candidates: list[Combination], first: Iterable[Combination]) -> list[Combination]:
    """`first`, and candidates until every pair that occurs among the candidates occurs.

    Greedy: next is always the one with most new pairs; of equals the first.
    """
    chosen = list(first)
    missing = set().union(*(one.pairs for one in candidates))
    missing -= set().union(*(one.pairs for one in chosen))
    while missing:
        chosen.append(max(candidates, key=lambda one: len(one.pairs & missing)))
        missing -= chosen[-1].pairs
    return chosen


# Whose temporaries are compared.
REMAT_CASES = {
    "h100": [
        Combination("h100", 1, "data"),
        Combination("h100", 8, "data"),
        Combination("h100", 8, "fsdp", accumulation=2),
    ],
    "v5e": [Combination("v5e", 1, "data", model="deep")],
}


def matrix(chip: str) -> list[Combination]:
    """The combinations that are compiled for a chip."""
    families = itertools.chain.from_iterable(map(remat_family, REMAT_CASES[chip]))
    return pairwise(allowed_combinations(chip), families)


def real_size() -> list[Combination]:
    """`base` and `big` on H200 and B200: training on each mesh, evaluation and beam search."""
    train = [(1, "data"), (8, "data"), (8, "fsdp"), (16, "data"), (16, "all")]
    cases = [(*where, "train") for where in train]
    cases += [(8, "data", "evaluation"), (8, "data", "beam")]
    return [
        Combination(chip, devices, mesh, program=program, model=model)
        for chip in ("h200", "b200")
        for model in ("base", "big")
        for devices, mesh, program in cases
    ]
