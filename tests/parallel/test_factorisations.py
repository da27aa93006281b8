"""Eight devices as data x fsdp x tensor, in every way: the losses of one device, less memory each.

`pytest -rP` prints the memory.
"""

import itertools
import math

import jax
import numpy as np
import pytest

from jaxformer.config import MeshConfig, OptimizerConfig
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import shard_batch
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.checks.memory import bytes_per_device
from jaxformer.training.program import TrainingProgram
from jaxformer.training.state import state_shardings

# Every width is a multiple of 8, so that each axis of the mesh cuts all that its rule says.
MODEL = TransformerConfig(
    vocab_size=64, num_encoder_layers=1, num_decoder_layers=1, d_model=32, d_ff=64, num_heads=8
)
OPTIMIZER = OptimizerConfig(
    schedule="inverse_sqrt", learning_rate=1e-2, warmup_steps=10, clip_norm=1.0
)
STEPS = 20
FACTORISATIONS = [
    sizes for sizes in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(sizes) == 8
]


def batches():
    """Rows of unequal length whose targets repeat the inputs: there is something to learn."""
    draw = np.random.default_rng(0)
    for _ in range(STEPS):
        ids = draw.integers(4, 64, (16, 12), dtype=np.int32)
        ids[np.arange(12)[None] >= draw.integers(4, 13, (16, 1))] = 0
        yield {"inputs": ids, "targets": ids.copy()}


PROGRAM = TrainingProgram(
    Translation(MODEL, pad_id=0, bos_id=2, label_smoothing=0.1), OPTIMIZER, num_steps=STEPS
)


def train(mesh, first):
    """Losses of a target token of `STEPS` updates with dropout, and the shapes of the state."""
    abstract, step = PROGRAM.abstract(mesh), PROGRAM.train_step(mesh)
    state, losses = jax.device_put(first, state_shardings(abstract, mesh)), []
    for batch in batches():
        state, sums = step(state, shard_batch(batch, mesh), jax.random.key(1))
        losses.append(float(sums["loss"]) / float(sums["weight"]))
    return losses, abstract


@pytest.fixture(scope="module")
def first_state():
    return jax.device_get(jax.jit(PROGRAM.init)(jax.random.key(0)))


@pytest.fixture(scope="module")
def one_device_run(first_state, compiled_programs):
    losses, abstract = train(make_mesh(MeshConfig(), jax.devices()[:1]), first_state)
    assert losses[-1] < losses[0] - 0.1  # something was learnt, so that the steps depend on it
    return losses, abstract


def test_all_ten_factorisations_are_tried():
    assert len(FACTORISATIONS) == len(set(FACTORISATIONS)) == 10


@pytest.mark.parametrize(("data", "fsdp", "tensor"), FACTORISATIONS)
def test_losses_are_those_of_one_device(data, fsdp, tensor, first_state, one_device_run):
    wanted, whole = one_device_run
    mesh = make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
    losses, abstract = train(mesh, first_state)
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-5)
    parameters, state = (bytes_per_device(tree) for tree in (abstract.params, abstract))
    print(
        f"data={data} fsdp={fsdp} tensor={tensor}: a device holds {parameters:,} of "
        f"{bytes_per_device(whole.params):,} bytes of parameters, {state:,} of "
        f"{bytes_per_device(whole):,} of the state"
    )
    matrices = vectors_of_d_model = vectors_of_d_ff = 0
    for leaf in jax.tree.leaves(whole.params):
        matrices += leaf.size if leaf.ndim == 2 else 0
        vectors_of_d_model += leaf.size if leaf.shape == (MODEL.d_model,) else 0
        vectors_of_d_ff += leaf.size if leaf.shape == (MODEL.d_ff,) else 0
    cut = matrices // (fsdp * tensor) + vectors_of_d_model // fsdp + vectors_of_d_ff // tensor
    assert parameters == 4 * cut
    assert state == 3 * parameters + 3 * 4  # two moments, and three counts of steps
