"""The affine map and its written derivative, against JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.dense import dense


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3)])
def test_equals_the_product_and_its_derivative(shape):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=shape), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    gradient = jnp.asarray(rng.normal(size=(*shape[:-1], 4)), jnp.float32)
    got, pull_back = jax.vjp(dense, x, kernel)
    wanted, pull_back_wanted = jax.vjp(jnp.dot, x, kernel)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    for one, other in zip(pull_back(gradient), pull_back_wanted(gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_no_activation_is_transposed():
    x, kernel = jnp.ones((64, 32, 16)), jnp.ones((16, 24))
    step = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(dense(jnp.sin(x), w))), (0, 1)))
    program = step.lower(x, kernel).compile().as_text()
    assert "f32[2048,24]" in program or "f32[64,32,24]" in program
    assert "f32[24,2048]" not in program


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (jnp.ones((1, 4)), r"kernel has shape \(1, 4\).*\(3, any\)"),
        (jnp.ones((3, 4, 5)), r"kernel has shape \(3, 4, 5\).*\[D, F\]"),
        (jnp.ones((3, 4), jnp.bfloat16), r"kernel is bfloat16 and x is float32.*astype\(x.dtype\)"),
    ],
)
def test_a_kernel_of_another_shape_or_dtype_is_refused(kernel, words):
    """A single row was broadcast, and the gradient of a bfloat16 array was float32."""
    with pytest.raises(ValueError, match=words):
        dense(jnp.ones((2, 3)), kernel)
    with pytest.raises(ValueError, match=words):
        jax.vjp(dense, jnp.ones((2, 3)), kernel)
