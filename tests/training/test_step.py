"""One update: against NumPy, on one and on eight devices, whole and in parts."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.config import MeshConfig, OptimizerConfig
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import shard_batch
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.program import TrainingProgram
from jaxformer.training.state import state_shardings
from jaxformer.training.step import moving_average

MODEL = TransformerConfig(
    vocab_size=24,
    num_encoder_layers=1,
    num_decoder_layers=1,
    d_model=16,
    d_ff=32,
    num_heads=2,
    dropout_rate=0.1,
)
# Adam divides by the size of the gradient: with a small epsilon rounding errors of gradients near
# zero would be blown up to the size of the learning rate.
OPTIMIZER = OptimizerConfig(
    schedule="constant",
    learning_rate=0.01,
    warmup_steps=0,
    epsilon=1e-3,
    clip_norm=0.1,
    weight_decay=0.1,
    ema_decay=0.9,
)
SMOOTHING = 0.1
MESHES = {
    "one": MeshConfig(data=1),
    "data": MeshConfig(data=8),
    "fsdp": MeshConfig(data=1, fsdp=8),
    "mixed": MeshConfig(data=2, fsdp=2, tensor=2),
}


def make_batch(*, poisoned=False):
    """Eight rows of 1 to 6 target tokens, so that devices hold unequal numbers of them.

    A poisoned one has an id that the embedding does not have, whose row is NaN.
    """
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(4, 24, (2, 8, 6)).astype(np.int32)
    lengths = np.array([6, 1, 2, 6, 3, 1, 5, 2])
    for ids, sizes in ((inputs, lengths[::-1]), (targets, lengths)):
        ids[np.arange(6) >= sizes[:, None]] = 0
    if poisoned:
        inputs[3, 0] = 99
    return {"inputs": inputs, "targets": targets}


def make_objective(model=MODEL, objective=Translation, **options):
    return objective(model, pad_id=0, bos_id=2, label_smoothing=SMOOTHING, **options)


class Run:
    """A compiled update on a mesh, always from the same first parameters."""

    def __init__(
        self, mesh, params, model=MODEL, config=OPTIMIZER, objective=Translation, r_drop_alpha=0.0
    ):
        devices = jax.devices()[:1] if mesh.data == 1 and mesh.fsdp == 1 else jax.devices()
        self.mesh = make_mesh(mesh, devices)
        objective = make_objective(model, objective, r_drop_alpha=r_drop_alpha)
        self.program = TrainingProgram(objective, config, num_steps=10)
        self.params = params
        self.shardings = state_shardings(self.program.shapes, self.mesh)
        self.step = self.program.train_step(self.mesh)

    def first_state(self, step=0):
        state = self.program.shapes
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state)
        ema = None if state.ema_params is None else self.params
        first = zeros._replace(step=np.int32(step), params=self.params, ema_params=ema)
        return jax.device_put(first, self.shardings)

    def update(self, state, seed=5, *, poisoned=False):
        batch = shard_batch(make_batch(poisoned=poisoned), self.mesh)
        return self.step(state, batch, jax.random.key(seed))


@pytest.fixture(scope="module")
def params(parameters_of):
    return parameters_of(MODEL)


@pytest.fixture(scope="module")
def run_on(params):
    return cache(lambda name: Run(MESHES[name], params))


@pytest.fixture(scope="module")
def two_updates(run_on):
    """For a mesh: first and second state and the sums of both updates, on the host."""

    @cache
    def run(name):
        state, sums = run_on(name).update(run_on(name).first_state())
        first = jax.device_get(state)
        second, more_sums = run_on(name).update(state)
        return first, jax.device_get(second), jax.device_get(sums), jax.device_get(more_sums)

    return run


def close(actual, expected, tolerance=1e-5):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for leaf, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=tolerance, atol=tolerance / 10)


def identical(actual, expected):
    for leaf, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, wanted)


@pytest.mark.parametrize("name", ["data", "fsdp", "mixed"])
def test_eight_devices_equal_one(two_updates, name):
    close(two_updates(name), two_updates("one"))


def test_muon_r_drop_and_accumulated_parts_on_eight_devices_equal_one(params):
    """The parts hold the same rows on any devices, so that dropout is the same as well."""
    config = replace(OPTIMIZER, name="muon", accumulation_steps=2)
    one, mixed = (
        Run(MESHES[name], params, config=config, r_drop_alpha=5.0) for name in ("one", "mixed")
    )
    states = [run.update(run.update(run.first_state())[0])[0] for run in (one, mixed)]
    expected, found = jax.device_get(states)
    close(found, expected)
    plain = Run(MESHES["one"], params, config=config)
    _, sums = plain.update(plain.first_state())
    assert abs(float(sums["loss"] - one.update(one.first_state())[1]["loss"])) > 1e-3


def test_update_equals_numpy(two_updates, params):
    """The exact gradient of the mean over all tokens of the batch, then clip, Adam, decay, average.

    `two_updates("data")` holds one row of 1 to 6 tokens on each of its devices.
    """
    batch, key = make_batch(), jax.random.fold_in(jax.random.key(5), 0)

    @jax.jit
    def mean_loss_gradient(params):
        def mean_loss(params):
            sums = make_objective().loss_sums(params, batch, key=key)
            return sums["loss"] / jnp.sum(batch["targets"] != 0), sums

        return jax.grad(mean_loss, has_aux=True)(params)

    gradient, sums = jax.device_get(mean_loss_gradient(params))
    state, _, reported, _ = two_updates("data")
    norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in jax.tree.leaves(gradient)))
    assert norm > 2 * OPTIMIZER.clip_norm
    assert reported["weight"] == 6 + 1 + 2 + 6 + 3 + 1 + 5 + 2
    close(reported, sums | {"gradient_norm": norm, "skipped": 0.0})
    clipped = jax.tree.map(lambda g: g * OPTIMIZER.clip_norm / norm, gradient)

    def updated(p, g):
        adam = g / (np.abs(g) + OPTIMIZER.epsilon)  # both bias corrections cancel in the first
        return p - 0.01 * (adam + (0.1 * p if p.ndim > 1 else 0.0))

    expected = jax.tree.map(updated, params, clipped)
    close(state.params, expected)
    d = 2 / 11  # (1 + n) / (10 + n) at the first update
    average = jax.tree.map(lambda old, new: d * old + (1 - d) * new, params, expected)
    close(state.ema_params, average)
    assert state.step == 1
    assert state.eval_params is state.ema_params


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_moving_average_leaves_the_first_parameters_behind(dtype):
    """Weights of what is averaged, by hand: the first parameters keep the product of all d."""
    average, weights = {"w": jnp.ones(3, dtype)}, np.array([1.0])
    for update in range(1, 101):
        new = {"w": jnp.full(3, 0.0, dtype)}
        average = moving_average(new, average, jnp.int32(update), 0.95)
        d = min(0.95, (1 + update) / (10 + update))
        weights = np.append(weights * d, 1 - d)
    assert average["w"].dtype == dtype
    np.testing.assert_allclose(average["w"].astype(np.float32), weights[0], rtol=1e-4, atol=1e-3)
    assert weights[0] < 1e-6 < 0.95**100
    assert weights[-1] == pytest.approx(1 - 101 / 110)  # 0.95 comes at update 170
    steady = moving_average({"w": jnp.zeros(1)}, {"w": jnp.ones(1)}, jnp.int32(1000), 0.95)
    assert steady["w"][0] == pytest.approx(0.95)


def test_same_state_batch_and_key_give_the_same_bits(two_updates, run_on):
    again, sums = run_on("one").update(run_on("one").first_state())
    first, _, first_sums, _ = two_updates("one")
    identical((again, sums), (first, first_sums))


def test_dropout_differs_from_step_to_step_and_from_key_to_key(two_updates, run_on):
    run = run_on("one")
    loss = float(two_updates("one")[2]["loss"])
    _, other_step = run.update(run.first_state(step=1))
    _, other_key = run.update(run.first_state(), seed=6)
    assert abs(float(other_step["loss"]) - loss) > 1e-3
    assert abs(float(other_key["loss"]) - loss) > 1e-3


def counts(opt_state):
    """Updates counted by Adam's bias correction and by the learning rate schedule."""
    adam, schedule = (
        [s.count for s in opt_state if isinstance(s, kind)]
        for kind in (optax.ScaleByAdamState, optax.ScaleByScheduleState)
    )
    return int(*adam), int(*schedule)


@pytest.mark.parametrize("name", ["one", "data"])
def test_an_update_that_is_not_finite_changes_the_step_alone(two_updates, run_on, name):
    """Of eight devices only one has the NaN in its rows."""
    run, (before, *_) = run_on(name), two_updates(name)
    state, sums = jax.device_get(run.update(jax.device_put(before, run.shardings), poisoned=True))
    assert np.isnan(sums["loss"]) and np.isnan(sums["gradient_norm"])
    assert (sums["skipped"], sums["weight"]) == (1.0, 26.0)
    assert (before.step, counts(before.opt_state)) == (1, (1, 1))
    assert (state.step, counts(state.opt_state)) == (2, (1, 2))
    identical(state.params, before.params)
    identical(state.ema_params, before.ema_params)
    moments, moments_before = (
        [s for s in opt_state if not isinstance(s, optax.ScaleByScheduleState)]
        for opt_state in (state.opt_state, before.opt_state)
    )
    identical(moments, moments_before)


def test_after_a_skipped_update_the_next_one_is_as_if_there_had_been_none(run_on):
    run = run_on("one")
    skipped, _ = run.update(run.first_state(), poisoned=True)
    after, sums = run.update(skipped)
    alone, alone_sums = run.update(run.first_state(step=1))
    identical((after.params, after.ema_params, sums), (alone.params, alone.ema_params, alone_sums))
    assert counts(after.opt_state) == (1, 2)


class GradientOfNaN(Translation):
    """A loss that is finite, with a gradient that is not: that of a root at zero."""

    def loss_sums(self, params, batch, **settings):
        sums = super().loss_sums(params, batch, **settings)
        first = jax.tree.leaves(params)[0]
        return sums | {"loss": sums["loss"] + jnp.sqrt(jnp.sum(0.0 * first))}


def test_a_gradient_that_is_not_finite_spoils_the_update_of_a_finite_loss(params):
    run = Run(
        MESHES["one"], params, config=replace(OPTIMIZER, name="muon"), objective=GradientOfNaN
    )
    before = jax.device_get(run.first_state())
    state, sums = jax.device_get(run.update(run.first_state()))
    assert np.isfinite(sums["loss"]) and np.isnan(sums["gradient_norm"])
    assert (sums["skipped"], state.step) == (1.0, 1)
    identical((state.params, state.ema_params), (before.params, before.ema_params))
    identical(state.opt_state[:-1], before.opt_state[:-1])
    assert int(state.opt_state[-1].count) == 1


def test_state_is_donated(run_on):
    state = run_on("one").first_state()
    run_on("one").update(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_accumulated_parts_equal_the_whole_batch(params):
    model = replace(MODEL, dropout_rate=0.0)
    config = replace(OPTIMIZER, clip_norm=0.0, weight_decay=0.0, ema_decay=0.0)
    whole, parts = (
        jax.device_get(run.update(run.first_state()))
        for run in (
            Run(MESHES["one"], params, model, replace(config, accumulation_steps=steps))
            for steps in (1, 4)
        )
    )
    assert whole[0].ema_params is None
    assert whole[0].eval_params is whole[0].params
    close(parts[0].params, whole[0].params, tolerance=1e-6)
    close(parts[1], whole[1])


def test_first_state_is_the_same_on_eight_devices(run_on):
    run = run_on("mixed")
    state = run.program.first_state(jax.random.key(3), run.mesh)
    expected = make_objective().init(jax.random.key(3))
    close(jax.device_get(state.params), jax.device_get(expected), tolerance=1e-6)
    identical(state.ema_params, state.params)
    assert int(state.step) == 0
    assert jax.tree.map(lambda leaf: leaf.sharding, state) == run.shardings
