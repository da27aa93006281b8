"""The affine map at each position, with a backward pass that transposes no activations."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_same_dtype, check_shape
from jaxformer.ops.differentiation import with_backward_pass


def dense(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`y = x W`.

    Its gradients are `dy W^T` and `x^T dy`, each one matrix product without copies; JAX's own
    derivative gives `(dy^T x)^T`, for which XLA makes a transposed copy of `dy`.
    Forward mode: inside `jaxformer.ops.differentiation.plain_derivatives`.

    Args:
      x: `[..., D]`.
      kernel: `[D, F]`, of the dtype of `x`.

    Returns:
      `[..., F]`.

    Raises:
      ValueError: `kernel` is not `[D, F]`, or of another dtype.
    """
    check_shape("kernel", kernel, (x.shape[-1], None), "[D, F]")
    check_same_dtype("kernel", kernel, "x", x)
    return _dense(x, kernel)


def _product(x, kernel):
    return jnp.einsum("...D,DF->...F", x, kernel)


def _forward(x, kernel):
    return _product(x, kernel), (x, kernel)


def _backward(saved, gradient):
    x, kernel = saved
    of_x = jnp.einsum("...F,DF->...D", gradient, kernel)
    rows = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    return of_x, jax.lax.dot_general(*rows, (((0,), (0,)), ((), ())))


_dense = with_backward_pass(_product, _forward, _backward)
