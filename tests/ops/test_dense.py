"""The affine map and its written derivative, against JAX's own."""

import jax
import jax.extend
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


def primitives(jaxpr):
    """Names of all operations of a program, those of inner functions included."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            if isinstance(value, jax.extend.core.ClosedJaxpr):
                yield from primitives(value.jaxpr)


def test_no_array_is_transposed_unlike_in_jaxs_own_derivative():
    x, kernel = jnp.ones((64, 32, 16)), jnp.ones((16, 24))

    def operations(product):
        gradient = jax.grad(lambda x, w: jnp.sum(jnp.sin(product(jnp.sin(x), w))), (0, 1))
        return list(primitives(jax.make_jaxpr(gradient)(x, kernel).jaxpr))

    assert operations(dense).count("dot_general") == 3
    assert "transpose" not in operations(dense)
    assert "transpose" in operations(jnp.dot)


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
