from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.model_config import REMAT_POLICIES, TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.ops.differentiation import plain_derivatives
from jaxformer.ops.losses import label_smoothed_cross_entropy, shift_right
from jaxformer.parallel.sharding import path_name
from jaxformer.tasks.translation_loss import Translation

CONFIG = TransformerConfig(
    vocab_size=23, num_encoder_layers=1, num_decoder_layers=2, d_model=16, d_ff=24, num_heads=2
)
INPUTS = np.random.default_rng(1).integers(0, 23, (3, 6)).astype(np.int32)
TOKENS = np.random.default_rng(2).integers(0, 23, (3, 5)).astype(np.int32)
DIRECTION = np.random.default_rng(3).normal(size=(3, 5, 23)).astype(np.float32)


def gradient_of(config, params):
    def total(params):
        output = Transformer(config).apply({"params": params}, INPUTS, TOKENS)
        return jnp.sum(output.logits * DIRECTION)

    return jax.device_get(jax.jit(jax.grad(total))(params))


def largest(gradient):
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    return {path_name(path): float(np.abs(leaf).max()) for path, leaf in leaves}


@pytest.fixture(scope="module")
def gradient(parameters_of):
    return gradient_of(CONFIG, parameters_of(CONFIG))


def close(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for leaf, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, atol=1e-5 * max(1.0, np.abs(wanted).max()))


def test_gradient_reaches_every_parameter(gradient):
    sizes = largest(gradient)
    assert len(sizes) == 1 + 12 + 2 * 18
    assert min(sizes.values()) > 1e-3


def test_gradient_reaches_every_parameter_of_the_variants(parameters_of):
    config = replace(
        CONFIG,
        num_decoder_layers=1,
        norm="pre",
        activation="swiglu",
        positions="learned",
        max_length=6,
        attention_bias=True,
        tie_embeddings=False,
    )
    sizes = largest(gradient_of(config, parameters_of(config)))
    # The same number added to all scores of a query changes no weight: equation 1.
    keys = {name: sizes.pop(name) for name in list(sizes) if name.endswith("key/bias")}
    assert len(keys) == 3
    assert max(keys.values()) < 1e-4
    assert len(sizes) == 5 + 2 * 2 + (8 + 4 + 6 - 1) + (8 + 8 + 6 + 6 - 2)
    assert min(sizes.values()) > 1e-3


@pytest.mark.parametrize("policy", REMAT_POLICIES)
def test_remat_gives_the_same_gradient(parameters_of, gradient, policy):
    config = replace(CONFIG, remat=True, remat_policy=policy)
    close(gradient_of(config, parameters_of(CONFIG)), gradient)


@pytest.mark.parametrize("policy", REMAT_POLICIES)
def test_remat_in_scanned_layers_gives_the_same_gradient(
    parameters_of, stack_layers, gradient, policy
):
    config = replace(CONFIG, remat=True, remat_policy=policy, scan_layers=True)
    stacked = gradient_of(config, stack_layers(parameters_of(CONFIG)))
    close(stacked, stack_layers(gradient))


def loss_of_logits(config):
    def loss(params):
        output = Transformer(config).apply({"params": params}, INPUTS, shift_right(TOKENS, 2))
        return jnp.sum(label_smoothed_cross_entropy(output.logits, TOKENS, 0.1).loss)

    return loss


def loss_of_chunks(config):
    def loss(params):
        batch = {"inputs": jnp.asarray(INPUTS), "targets": jnp.asarray(TOKENS)}
        task = Translation(config, pad_id=0, bos_id=2, label_smoothing=0.1, chunk_tokens=4)
        return task.loss_sums(params, batch)["loss"]

    return loss


def along(params, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)


def product(one, other):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, one, other)))


@pytest.mark.parametrize(
    ("loss_of", "scanned"),
    [(loss_of_logits, False), (loss_of_logits, True), (loss_of_chunks, False)],
)
def test_forward_mode_gives_the_gradient_along_a_direction(
    parameters_of, stack_layers, loss_of, scanned
):
    params, loss = parameters_of(CONFIG), loss_of(CONFIG)
    if scanned:
        params = stack_layers(params)
        loss = loss_of(replace(CONFIG, scan_layers=True, remat=True))
    params = jax.tree.map(jnp.asarray, params)
    loss, direction = jax.jit(loss), along(params, 4)  # one function, traced in both ways
    expected = product(jax.jit(jax.grad(loss))(params), direction)
    with plain_derivatives():
        _, tangent = jax.jit(lambda p, d: jax.jvp(loss, (p,), (d,)))(params, direction)
        _, linear = jax.linearize(loss, params)
    assert abs(float(expected)) > 1e-2
    np.testing.assert_allclose(tangent, expected, rtol=1e-4)
    np.testing.assert_allclose(jax.jit(linear)(direction), expected, rtol=1e-4)


def test_product_of_the_hessian_and_a_vector_needs_no_context(parameters_of):
    params, loss = jax.tree.map(jnp.asarray, parameters_of(CONFIG)), loss_of_chunks(CONFIG)
    one, other = along(params, 5), along(params, 6)

    @jax.jit
    def curvature(params, one, other):
        return product(jax.jvp(jax.grad(loss), (params,), (one,))[1], other)

    got = curvature(params, one, other)

    def slope(params):
        return jax.jvp(loss, (params,), (one,))[1]

    with plain_derivatives():
        expected = jax.jit(lambda params: jax.jvp(slope, (params,), (other,))[1])(params)
    assert abs(float(expected)) > 1e-2
    np.testing.assert_allclose(got, expected, rtol=1e-3)
