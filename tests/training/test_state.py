"""A state moved to another step, and the check before one is saved."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.config import MeshConfig, OptimizerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import replicated
from jaxformer.training.optimizer import make_optimizer, make_schedule
from jaxformer.training.state import TrainState, at_step, make_finite_check


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
