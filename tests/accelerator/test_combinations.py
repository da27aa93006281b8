"""The matrix leaves no pair of options out that can occur."""

import itertools

import pytest
from accelerator.combinations import (
    FACTORS,
    REMAT_CASES,
    Combination,
    allowed_combinations,
    is_allowed,
    matrix,
    pairwise,
    remat_family,
)


@pytest.mark.parametrize("chip", REMAT_CASES)
def test_every_pair_of_options_that_can_occur_is_compiled(chip):
    chosen = matrix(chip)
    for (one, values), (other, others) in itertools.combinations(FACTORS.items(), 2):
        for value, another in itertools.product(values, others):
            can = any(
                (getattr(c, one), getattr(c, other)) == (value, another)
                for c in allowed_combinations(chip)
            )
            does = any((getattr(c, one), getattr(c, other)) == (value, another) for c in chosen)
            assert does == can, (one, value, other, another)


@pytest.mark.parametrize("chip", REMAT_CASES)
def test_the_matrix_is_small_has_nothing_twice_and_is_the_same_each_time(chip):
    chosen = matrix(chip)
    assert len(chosen) == len(set(chosen)) <= 28
    assert chosen == matrix(chip)
    assert all(map(is_allowed, chosen))
    assert all(set(remat_family(one)) <= set(chosen) for one in REMAT_CASES[chip])


def test_what_is_allowed():
    train = Combination("h100", 8, "fsdp", remat="nothing", accumulation=2, batching="packed")
    assert is_allowed(train)
    assert not is_allowed(Combination("h100", 1, "fsdp"))
    assert not is_allowed(Combination("h100", 8, "data", program="greedy", batching="packed"))
    assert not is_allowed(Combination("h100", 8, "data", program="beam", remat="nothing"))
    assert not is_allowed(Combination("h100", 8, "data", program="evaluation", accumulation=2))
    assert len(allowed_combinations("h100")) == 288


def test_a_pair_that_is_left_out_is_added():
    candidates = [Combination("h100", 8, mesh) for mesh in ("data", "fsdp")]
    assert pairwise(candidates, candidates[:1]) == candidates
    assert pairwise(candidates, candidates) == candidates


@pytest.mark.parametrize("devices", [8, 16])
def test_the_meshes_fill_their_devices(devices):
    for mesh in FACTORS["mesh"]:
        data, fsdp, tensor = Combination("h100", devices, mesh).sizes.values()
        assert data * fsdp * tensor == devices
