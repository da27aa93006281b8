"""Schedules and optimizers: by hand, on several devices, through skipped steps, and learning."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.config import Config, MeshConfig, OptimizerConfig
from jaxformer.config_sections import OPTIMIZER_NAMES, SCHEDULE_ALIASES, SCHEDULE_NAMES
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import shard_batch
from jaxformer.storage.changes import config_changes
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.optimizer import (
    FACTORED_SIZE,
    OPTIMIZERS,
    SCHEDULES,
    make_optimizer,
    make_schedule,
)
from jaxformer.training.program import TrainingProgram
from jaxformer.training.state import keep_counts_unless


def rates(steps, *, d_model=512, num_steps=1500, **fields):
    """Learning rates of the updates 1, 2, ... named in `steps`."""
    config = OptimizerConfig(**fields)
    schedule = make_schedule(config, d_model=d_model, num_steps=num_steps)
    return [float(schedule(jnp.int32(step - 1))) for step in steps]


def updates(gradients, params, **fields):
    """Parameters after each update at the constant learning rate 0.1."""
    config = OptimizerConfig(schedule="constant", learning_rate=0.1, warmup_steps=0, **fields)
    optimizer = make_optimizer(config, make_schedule(config, d_model=8, num_steps=10))
    state = optimizer.init(params)
    for gradient in gradients:
        change, state = optimizer.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, change)
    return params


def test_paper_schedule():
    """512^-0.5 = 0.0441942; times 4000^-1.5 = 3.952847e-6; times 4000^-0.5 = 0.0158114."""
    actual = rates([1, 2, 4000, 16_000], schedule="paper", learning_rate=1.0, warmup_steps=4000)
    assert actual == pytest.approx([1.746928e-7, 3.493856e-7, 6.987712e-4, 3.493856e-4], rel=1e-5)
    doubled = rates([1], schedule="paper", learning_rate=2.0, warmup_steps=4000)
    assert doubled == pytest.approx([3.493856e-7], rel=1e-5)


def test_noam_is_another_name_of_the_papers_schedule():
    """Also for a run: one started with either name is resumed with the other."""
    assert SCHEDULE_ALIASES == {"noam": "paper"}
    paper, noam = (Config(optimizer=OptimizerConfig(schedule=name)) for name in ("paper", "noam"))
    assert noam == paper and noam.to_json() == paper.to_json()
    assert Config.from_dict({"optimizer": {"schedule": "noam"}}) == paper
    assert config_changes(paper, noam) == config_changes(noam, paper) == []


def test_inverse_sqrt_schedule():
    actual = rates(
        [1, 1000, 2000, 8000], schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=2000
    )
    assert actual == pytest.approx([2.5e-6, 2.5e-3, 5e-3, 2.5e-3], rel=1e-5)


def test_cosine_schedule_ends_at_zero():
    """A third of the way down: (1 + cos(pi / 3)) / 2 = 3/4."""
    steps = [1, 100, 200, 633, 850, 1500, 2000]
    actual = rates(steps, schedule="cosine", learning_rate=4e-3, warmup_steps=200, num_steps=1499)
    middle = 4e-3 * 0.5 * (1 + np.cos(np.pi * 650 / 1299))
    assert actual == pytest.approx([2e-5, 2e-3, 4e-3, 3e-3, middle, 0, 0], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_schedules_without_warm_up(schedule):
    actual = rates([1], schedule=schedule, learning_rate=4e-3, warmup_steps=0, num_steps=10**6)
    assert actual == pytest.approx([4e-3], rel=1e-5)


def test_constant_schedule():
    actual = rates([1, 5, 10, 99], schedule="constant", learning_rate=4e-3, warmup_steps=10)
    assert actual == pytest.approx([4e-4, 2e-3, 4e-3, 4e-3], rel=1e-5)


def test_first_updates_of_adam():
    """First: -rate g / |g|. Second, of g = 1 then 3: m = 0.39 / 0.19, v = 0.1996 / 0.0396."""
    params = {"w": jnp.array([[1.0, 1.0]])}
    first = {"w": jnp.array([[0.5, -2.0]])}
    np.testing.assert_allclose(updates([first], params)["w"], [[0.9, 1.1]], rtol=1e-6)
    gradients = [{"w": jnp.array([[1.0, 1.0]])}, {"w": jnp.array([[3.0, 1.0]])}]
    step = 0.1 * (0.39 / 0.19) / np.sqrt(0.1996 / 0.0396)
    after = updates(gradients, params)
    np.testing.assert_allclose(after["w"], [[0.9 - step, 0.8]], rtol=1e-5)


def test_epsilon_is_added_outside_the_root():
    params = {"w": jnp.array([[1.0]])}
    after = updates([{"w": jnp.array([[0.25]])}], params, epsilon=0.25)
    np.testing.assert_allclose(after["w"], [[1 - 0.1 * 0.25 / (0.25 + 0.25)]], rtol=1e-6)


def test_clipping_is_by_the_global_norm():
    """The norm of (3, 4) is 5; epsilon = 1 shows the size of a gradient in Adam's first update."""
    params = {"a": jnp.zeros((1, 1)), "b": jnp.zeros((1, 1))}
    gradient = {"a": jnp.array([[3.0]]), "b": jnp.array([[4.0]])}
    clipped = updates([gradient], params, clip_norm=1.0, epsilon=1.0)
    assert float(clipped["a"][0, 0]) == pytest.approx(-0.1 * 0.6 / 1.6, rel=1e-5)
    assert float(clipped["b"][0, 0]) == pytest.approx(-0.1 * 0.8 / 1.8, rel=1e-5)
    whole = updates([gradient], params, clip_norm=6.0, epsilon=1.0)
    assert float(whole["a"][0, 0]) == pytest.approx(-0.1 * 3.0 / 4.0, rel=1e-5)


def test_weight_decay_is_decoupled_and_on_matrices_only():
    """Also where scanned layers stack the vectors of L layers into one [L, D] array."""
    params = {
        "token_embedding": {"embedding": jnp.full((2, 2), 2.0)},
        "layers": {
            "out": {"kernel": jnp.full((3, 2, 2), 2.0), "bias": jnp.full((3, 2), 2.0)},
            "out_norm": {"scale": jnp.full((3, 2), 2.0)},
        },
        "norm": {"scale": jnp.full((2,), 2.0)},
    }
    zeros = jax.tree.map(jnp.zeros_like, params)
    after = updates([zeros], params, weight_decay=0.5)
    decayed = jax.tree.map(lambda p: float(p.ravel()[0]), after)
    assert decayed == {
        "token_embedding": {"embedding": pytest.approx(2 - 0.1 * 0.5 * 2)},
        "layers": {
            "out": {"kernel": pytest.approx(2 - 0.1 * 0.5 * 2), "bias": 2.0},
            "out_norm": {"scale": 2.0},
        },
        "norm": {"scale": 2.0},
    }


def muon_parameters(seed=0):
    """Two matrices within layers, and what Muon leaves to Adam."""
    normal = np.random.default_rng(seed).normal
    return {
        "token_embedding": {"embedding": jnp.asarray(normal(size=(6, 8)), jnp.float32)},
        "encoder": {
            "layer_0": {
                "inner": {
                    "kernel": jnp.asarray(normal(size=(8, 24)), jnp.float32),
                    "bias": jnp.asarray(normal(size=(24,)), jnp.float32),
                },
                "out": {"kernel": jnp.asarray(normal(size=(16, 8)), jnp.float32)},
            }
        },
        "output_projection": {"kernel": jnp.asarray(normal(size=(8, 6)), jnp.float32)},
    }


def test_muon_makes_all_singular_values_of_an_update_alike():
    """Of the usual size 0.2 sqrt(max(m, n)), times the rate; five iterations end near 1."""
    params, gradient = muon_parameters(0), muon_parameters(1)
    layer = gradient["encoder"]["layer_0"]
    layer["inner"]["kernel"] = layer["inner"]["kernel"].at[:, 0].multiply(30.0)
    after = updates([gradient], params, name="muon")
    for name, largest in (("inner", 24), ("out", 16)):
        old = params["encoder"]["layer_0"][name]["kernel"]
        update = (old - after["encoder"]["layer_0"][name]["kernel"]) / 0.1
        left, _, right = np.linalg.svd(np.asarray(layer[name]["kernel"], np.float64))
        size = min(old.shape)
        in_basis = (left.T @ np.asarray(update) @ right.T)[:size, :size] / (0.2 * largest**0.5)
        assert np.all((np.diag(in_basis) > 0.6) & (np.diag(in_basis) < 1.25)), in_basis
        np.testing.assert_allclose(in_basis - np.diag(np.diag(in_basis)), 0.0, atol=2e-4)


def test_muon_leaves_embeddings_output_projection_and_vectors_to_adam():
    params = muon_parameters(0)
    gradients = [muon_parameters(1), muon_parameters(2)]
    adam, muon = updates(gradients, params), updates(gradients, params, name="muon")
    same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), adam, muon)
    assert same == {
        "token_embedding": {"embedding": True},
        "encoder": {
            "layer_0": {"inner": {"kernel": False, "bias": True}, "out": {"kernel": False}}
        },
        "output_projection": {"kernel": True},
    }


def test_muon_takes_each_scanned_layer_by_itself():
    one, two = (muon_parameters(seed)["encoder"]["layer_0"]["out"]["kernel"] for seed in (1, 2))
    params = {"decoder": {"layers": {"out": {"kernel": jnp.zeros((2, 16, 8))}}}}
    gradient = {"decoder": {"layers": {"out": {"kernel": jnp.stack([one, 1e-3 * two])}}}}
    both = updates([gradient], params, name="muon")["decoder"]["layers"]["out"]["kernel"]
    for layer, update in zip((one, two), both, strict=True):
        alone = updates(
            [{"decoder": {"layer_0": {"out": {"kernel": layer}}}}],
            {"decoder": {"layer_0": {"out": {"kernel": jnp.zeros((16, 8))}}}},
            name="muon",
        )
        kernel = alone["decoder"]["layer_0"]["out"]["kernel"]
        np.testing.assert_allclose(update, kernel, rtol=2e-4, atol=1e-5)


def test_muon_momentum_is_nesterovs():
    """beta = 1/2, gradients g and h: m = g/4 + h/2, and m/2 / (7/8) + h/2 / (3/4) is 3g + 20h."""
    first, second = (muon_parameters(seed)["encoder"]["layer_0"] for seed in (1, 2))
    zeros = jax.tree.map(jnp.zeros_like, first)
    blended = jax.tree.map(lambda g, h: 3 * g + 20 * h, first, second)

    def kernel(*gradients):
        trees = [{"encoder": {"layer_0": gradient}} for gradient in gradients]
        after = updates(trees, {"encoder": {"layer_0": zeros}}, name="muon", momentum=0.5)
        return after["encoder"]["layer_0"]["inner"]["kernel"]

    np.testing.assert_allclose(kernel(first, second) - kernel(first), kernel(blended), atol=1e-4)


def test_the_configuration_knows_the_names_without_optax():
    assert tuple(OPTIMIZERS) == OPTIMIZER_NAMES
    assert tuple(SCHEDULES) == SCHEDULE_NAMES


def test_adamw_is_adam_with_a_weight_decay():
    assert OPTIMIZERS["adamw"] is OPTIMIZERS["adam"]
    params, gradients = muon_parameters(0), [muon_parameters(1), muon_parameters(2)]
    adam, adamw = (
        updates(gradients, params, name=name, weight_decay=0.1) for name in ("adam", "adamw")
    )
    jax.tree.map(np.testing.assert_array_equal, adamw, adam)


# By optimizer: what it reads of these. The rest does nothing, and docs/training.md says so.
READS = {
    "adam": {"b1", "b2", "epsilon"},
    "adamw": {"b1", "b2", "epsilon"},
    "adafactor": set(),
    "lion": {"b1", "b2"},
    "muon": {"b1", "b2", "epsilon", "momentum"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hyper_parameters_that_an_optimizer_reads(name):
    params, gradients = muon_parameters(0), [muon_parameters(1), muon_parameters(2)]

    def after(**fields):
        return updates(gradients, params, name=name, weight_decay=0.1, **fields)

    expected = after()

    def differs(**fields):
        same = jax.tree.map(jnp.array_equal, after(**fields), expected)
        return not all(jax.tree.leaves(same))

    others = {"b1": 0.2, "b2": 0.3, "epsilon": 0.1, "momentum": 0.4}
    assert {field for field, value in others.items() if differs(**{field: value})} == READS[name]


def test_updates_of_lion():
    """b1 = 1/2, b2 = 3/4. Of g = 1, -2, 0: their signs, and m = g/4. Then of g = -2, -2, 0:
    m/2 + g/2 is -7/8, -5/4, 0 and m = 3/16 - 1/2, ... = -5/16, -7/8, 0. Then of g = 1/4, 1, 0:
    -1/32, 1/16, 0; with b1 = b2 the first would be +."""
    params = {"w": jnp.zeros((1, 3))}
    gradients = [
        {"w": jnp.array([g])} for g in ([1.0, -2.0, 0.0], [-2.0, -2.0, 0.0], [0.25, 1.0, 0.0])
    ]
    expected = np.cumsum([[-0.1, 0.1, 0.0], [0.1, 0.1, 0.0], [0.1, -0.1, 0.0]], axis=0)
    for count, wanted in enumerate(expected, 1):
        found = updates(gradients[:count], params, name="lion", b1=0.5, b2=0.75)
        np.testing.assert_allclose(found["w"], [wanted], atol=1e-7)


def random_arrays(seed, *shapes):
    draw = np.random.default_rng(seed)
    return [draw.normal(size=shape) * 10.0 ** draw.normal(size=shape[-1:]) for shape in shapes]


def test_updates_of_adafactor():
    """Against NumPy in float64: means over rows and columns of a matrix, all of a small one."""
    side = FACTORED_SIZE
    shapes = {"large": (side, side + 3), "small": (side - 1, side + 3), "vector": (side,)}
    gradients = [
        dict(zip(shapes, random_arrays(seed, *shapes.values()), strict=True)) for seed in range(3)
    ]
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    found = updates(
        [jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), g) for g in gradients],
        params,
        name="adafactor",
    )
    for name, shape in shapes.items():
        rows, columns, v, wanted = 0.0, 0.0, 0.0, np.zeros(shape)
        for t, gradient in enumerate((g[name] for g in gradients), 1):
            decay = 1.0 - t**-0.8
            squares = gradient**2
            if name == "large":
                rows = decay * rows + (1.0 - decay) * squares.mean(1, keepdims=True)
                columns = decay * columns + (1.0 - decay) * squares.mean(0, keepdims=True)
                v = rows * columns / rows.mean()
            else:
                v = decay * v + (1.0 - decay) * squares
            update = gradient / np.sqrt(v)
            wanted -= 0.1 * update / max(1.0, np.sqrt(np.mean(update**2)))
        np.testing.assert_allclose(found[name], wanted, rtol=2e-4, atol=1e-5)


def test_adafactor_takes_each_scanned_layer_by_itself():
    """The second gradient is larger where the first was small, so that its update is clipped."""
    shape = (FACTORED_SIZE, FACTORED_SIZE)
    first, *second = random_arrays(0, shape, shape, shape)
    layers = [[first, 10 * second[0]], [1e-3 * first, 1e-4 * second[1]]]
    layers = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32), layers)

    def updated(gradients, side):
        trees = [{"decoder": {side: {"out": {"kernel": g}}}} for g in gradients]
        after = updates(trees, jax.tree.map(jnp.zeros_like, trees[0]), name="adafactor")
        return after["decoder"][side]["out"]["kernel"]

    both = updated([jnp.stack(pair) for pair in zip(*layers, strict=True)], "layers")
    for layer, update in zip(layers, both, strict=True):
        np.testing.assert_allclose(update, updated(layer, "layer_0"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_update_leaves_all_but_the_count_of_the_schedule(name):
    config = OptimizerConfig(name=name, clip_norm=1.0, weight_decay=0.1)
    optimizer = make_optimizer(config, make_schedule(config, d_model=8, num_steps=10))

    def arrays(seed):
        kernel = np.random.default_rng(seed).normal(size=(FACTORED_SIZE, FACTORED_SIZE))
        extra = {"decoder": {"layer_0": {"out": {"kernel": jnp.asarray(kernel, jnp.float32)}}}}
        return muon_parameters(seed) | extra

    @jax.jit
    def update(gradients, state, params):
        finite = jnp.isfinite(optax.tree.norm(gradients))
        _, changed = optimizer.update(gradients, state, params, finite=finite)
        return keep_counts_unless(finite, changed, state)

    params = arrays(0)
    before = update(arrays(1), optimizer.init(params), params)
    for value in (np.nan, np.inf):
        damaged = jax.tree.map(lambda g, value=value: g.at[0].set(value), arrays(2))
        after = update(damaged, before, params)
        assert int(after[-1].count) == int(before[-1].count) + 1 == 2
        jax.tree.map(np.testing.assert_array_equal, after[:-1], before[:-1])
    changed = update(arrays(2), before, params)
    same = jax.tree.leaves(jax.tree.map(jnp.array_equal, changed[1], before[1]))
    assert sum(not leaf for leaf in same) > 2  # the test sees an update that is not skipped


MODEL = TransformerConfig(
    vocab_size=24, num_encoder_layers=1, num_decoder_layers=1, d_model=FACTORED_SIZE,
    d_ff=FACTORED_SIZE, num_heads=2, dropout_rate=0.0,
)  # fmt: skip
# Learning rates, and the loss of a token after 30 updates; 6.5 before the first.
LEARNING = {"adam": (3e-3, 0.3), "adafactor": (1e-3, 0.4), "lion": (5e-4, 1.6), "muon": (3e-3, 1.3)}


class CopyRun:
    """Sixteen rows of six sorted numbers, to be copied; one batch again and again."""

    def __init__(self, name, mesh):
        config = OptimizerConfig(
            name=name, schedule="constant", learning_rate=LEARNING[name][0], warmup_steps=5,
            clip_norm=1.0, weight_decay=0.01,
        )  # fmt: skip
        program = TrainingProgram(Translation(MODEL, pad_id=0, bos_id=2), config, num_steps=30)
        self.mesh = mesh
        self.state = program.first_state(jax.random.key(0), mesh)
        self.step = program.train_step(mesh)
        self.rows = np.sort(np.random.default_rng(0).integers(4, 24, (16, 6)), axis=1)

    def update(self, *, poisoned=False):
        """The loss of a token before the update; a poisoned row has an id that is not there."""
        rows = self.rows.astype(np.int32)
        inputs = np.where(np.arange(16)[:, None] == 3, 99, rows) if poisoned else rows
        batch = shard_batch({"inputs": inputs.astype(np.int32), "targets": rows}, self.mesh)
        self.state, sums = self.step(self.state, batch, jax.random.key(1))
        return float(sums["loss"] / sums["weight"])


@pytest.fixture(scope="module")
def learning():
    """For an optimizer: 30 losses on one device, and the run that had them."""

    @cache
    def learn(name):
        run = CopyRun(name, make_mesh(MeshConfig(data=1), jax.devices()[:1]))
        return [run.update() for _ in range(30)], run

    return learn


@pytest.mark.parametrize("name", LEARNING)
def test_each_optimizer_learns_and_skips(learning, name):
    losses, run = learning(name)
    assert losses[0] > 6.0 and losses[-1] < LEARNING[name][1], losses
    before = jax.device_get(run.state)
    assert np.isnan(run.update(poisoned=True))
    after = jax.device_get(run.state)
    jax.tree.map(np.testing.assert_array_equal, after.params, before.params)
    jax.tree.map(np.testing.assert_array_equal, after.opt_state[:-1], before.opt_state[:-1])
    assert (int(after.step), int(after.opt_state[-1].count)) == (31, 31)
    assert run.update() < losses[-2]


@pytest.mark.parametrize("name", LEARNING)
def test_cut_over_fsdp_and_tensor_the_losses_are_those_of_one_device(learning, name):
    run = CopyRun(name, make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)))
    losses = [run.update() for _ in range(5)]
    np.testing.assert_allclose(losses, learning(name)[0][:5], rtol=1e-5)
