import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import OptimizerConfig
from jaxformer.training.optimizer import make_optimizer, make_schedule


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
