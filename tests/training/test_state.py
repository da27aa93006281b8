"""Where a state lives, a state moved to another step, saved and restored, and found finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_run import change, replace_measurement, small_config, write_corpus

from jaxformer.config import MeshConfig, OptimizerConfig
from jaxformer.decoding.translator import abstract_params
from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import parameter_shardings, replicated
from jaxformer.storage.checkpoint import load_params
from jaxformer.storage.workdir import Workdir
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.loop import train
from jaxformer.training.optimizer import OPTIMIZERS, make_optimizer, make_schedule
from jaxformer.training.program import TrainingProgram
from jaxformer.training.state import TrainState, at_step, make_finite_check, state_shardings


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig(data=8))


def make_state(mesh, *, ema):
    config = OptimizerConfig(clip_norm=1.0)
    optimizer = make_optimizer(config, make_schedule(config, d_model=4, num_steps=9))
    params = {"encoder": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3)}}
    opt_state = optimizer.init(params)
    _, opt_state = optimizer.update(params, opt_state, params)
    ema_params = jax.tree.map(jnp.copy, params) if ema else None
    return jax.device_put(TrainState(jnp.int32(1), params, opt_state, ema_params), replicated(mesh))


@pytest.mark.parametrize("ema", [False, True])
def test_moving_to_a_step_leaves_all_but_the_step_and_the_schedule(mesh, ema):
    state = make_state(mesh, ema=ema)
    moved = at_step(state, 7)
    (adam,), (schedule,) = (
        [s for s in moved.opt_state if isinstance(s, kind)]
        for kind in (optax.ScaleByAdamState, optax.ScaleByScheduleState)
    )
    assert (int(moved.step), int(schedule.count), int(adam.count)) == (7, 7, 1)
    back = at_step(moved, 1)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    assert jax.tree.map(lambda x: (x.dtype, x.sharding), back) == jax.tree.map(
        lambda x: (x.dtype, x.sharding), state
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["params", "opt_state", "ema_params"])
def test_one_number_that_is_not_finite_is_found_wherever_it_is(mesh, part, value):
    is_finite, state = make_finite_check(mesh), make_state(mesh, ema=True)
    assert bool(is_finite(state))
    damaged = jax.tree.map(
        lambda x: x.at[-1, -1].set(value) if x.ndim == 2 else x, getattr(state, part)
    )
    found = is_finite(state._replace(**{part: damaged}))
    assert not found and found.sharding == replicated(mesh)


# Bytes of an optimizer's state over those of the parameters, in a model of matrices.
STATE_SIZES = {"adam": 2.0, "adamw": 2.0, "adafactor": 0.02, "lion": 1.0, "muon": 1.05}


def sized(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_shapes_and_shardings(name, scan_layers):
    """The same as `optax.tree_map_params` finds, which needs the optimizer itself."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    model = TransformerConfig(
        vocab_size=256, num_encoder_layers=2, num_decoder_layers=2, d_model=128, d_ff=256,
        num_heads=4, scan_layers=scan_layers,
    )  # fmt: skip
    config = OptimizerConfig(name=name, weight_decay=0.1, clip_norm=1.0, ema_decay=0.9)
    shapes = TrainingProgram(Translation(model, pad_id=0, bos_id=2), config, 100).shapes
    assert sized(shapes.opt_state) / sized(shapes.params) == pytest.approx(
        STATE_SIZES[name], abs=0.02
    )
    found, expected = state_shardings(shapes, mesh), parameter_shardings(shapes.params, mesh)
    assert found.params == found.ema_params == expected
    assert found.step == replicated(mesh)

    def left_out(node):
        return isinstance(node, optax.MaskedNode)

    def place(node, parameter, sharding):
        if left_out(node):
            return node
        return sharding if node.shape == parameter.shape else replicated(mesh)

    assert found.opt_state == optax.tree_map_params(
        make_optimizer(config, lambda count: 0.1),
        place,
        shapes.opt_state,
        shapes.params,
        expected,
        transform_non_params=lambda _: replicated(mesh),
        is_leaf=left_out,
    )
    specs = {tuple(sharding.spec) for sharding in jax.tree.leaves(found.opt_state)}
    assert len(specs) >= 3  # () is one of them


def test_an_entry_of_several_arrays_lives_where_its_shapes_say():
    """As of an optimizer that is not here: by parameter a moment and its scale, or nothing."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    shape = jax.ShapeDtypeStruct
    params = {"output_projection": {"kernel": shape((4, 6), jnp.float32)}}
    entries = {"output_projection": {"kernel": (shape((4, 6), jnp.int8), shape((4,), jnp.float32))}}
    nothing = {"output_projection": {"kernel": optax.MaskedNode()}}
    state = TrainState(shape((), jnp.int32), params, (entries, nothing), None)
    found = state_shardings(state, mesh)
    kernel = found.params["output_projection"]["kernel"]
    assert tuple(kernel.spec) == ("fsdp", "tensor")
    assert found.opt_state[0]["output_projection"]["kernel"] == (kernel, replicated(mesh))
    assert found.opt_state[1] == nothing and found.ema_params is None


@pytest.mark.parametrize("name", ["adafactor", "lion"])
def test_a_resumed_run_is_bit_identical(compiled_programs, one_device, tmp_path, monkeypatch, name):
    """Wide enough for Adafactor to factor the embedding and the attention's matrices."""
    replace_measurement(monkeypatch, [1.0] * 9)
    config = small_config(
        write_corpus(tmp_path / "corpus"), tmp_path / "cache", model__d_model=128,
        optimizer__name=name, optimizer__learning_rate=1e-3, optimizer__weight_decay=0.1,
        training__num_steps=4,
    )  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole)
    assert train(change(config, training__num_steps=2), parts).step == 2
    assert train(config, parts).step == 4

    def params_of(workdir, step):
        abstract = abstract_params(Transformer(Workdir(workdir).load_config().model))
        return load_params(workdir / "checkpoints" / str(step), abstract)

    jax.tree.map(np.testing.assert_array_equal, params_of(parts, 4), params_of(whole, 4))
    same = jax.tree.map(np.array_equal, params_of(parts, 2), params_of(parts, 4))
    assert not any(jax.tree.leaves(same))
