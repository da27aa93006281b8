"""Meshes that make sense for some devices, and those that are refused."""

import re

import jax
import pytest
from training_run import change, small_config

from jaxformer.config import MeshConfig
from jaxformer.errors import InputError
from jaxformer.planning import mesh_choice
from jaxformer.planning.mesh_choice import bytes_whole, check_mesh, propose_mesh
from jaxformer.planning.step_plan import plan_run
from jaxformer.planning.topology import find_chip
from jaxformer.training.checks.memory import bytes_per_device

H100 = "NVIDIA H100 80GB HBM3"
CONFIG = change(small_config("corpus", "cache"), tokenizer__vocab_size=352)


def planned(**changes):
    return plan_run(change(CONFIG, **changes), jax.devices())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"mesh__data": 3}, "mesh.data=3 x mesh.fsdp=1 x mesh.tensor=1: .*8 devices"),
        ({"mesh__tensor": 3}, "mesh.tensor=3: .*8 devices; tensor=3 .*model.num_heads=2"),
        ({"mesh__tensor": 4}, "mesh.tensor=4: tensor=4 .*model.num_heads=2; "),
        ({"model__d_model": 36, "mesh__fsdp": 8}, "fsdp=8 .*model.d_model=36"),
        ({"model__d_ff": 63, "mesh__tensor": 2}, "tensor=2 .*model.d_ff=63"),
    ],
)
def test_a_mesh_that_makes_no_sense_is_refused_with_one_that_does(changes, problem):
    with pytest.raises(InputError) as refused:
        planned(**changes)
    message = str(refused.value)
    assert re.search(problem, message)
    assert message.endswith(" --config.mesh.data=-1 --config.mesh.fsdp=1 --config.mesh.tensor=1")


def test_fsdp_is_proposed_only_as_far_as_memory_asks_for_it(monkeypatch):
    run = planned()
    state = run.abstract
    whole = bytes_per_device(state) + bytes_per_device(state.params)
    assert bytes_whole(state) == whole
    chip = find_chip(H100)
    for room, fsdp in ((2.0, 1), (1.9, 2), (0.51, 4), (0.1, 8)):
        small = chip._replace(memory=room * whole)
        monkeypatch.setattr(mesh_choice, "find_chip", lambda kind, small=small: small)
        assert propose_mesh(run.config, state, jax.devices()).fsdp == fsdp
    check_mesh(run.config, 8, MeshConfig())
