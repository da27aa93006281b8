"""Layer normalisation (Ba et al. 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_floating, check_same_dtype, check_shape
from jaxformer.ops.differentiation import with_backward_pass


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """`scale (x - mean) / sqrt(variance + epsilon) + bias` over the last axis.

    Statistics are float32 whatever the dtype of `x`. The custom backward pass keeps only the
    normalised rows and their inverse deviations. Forward mode: inside
    `jaxformer.ops.differentiation.plain_derivatives`.

    Args:
      x: `[..., D]`.
      scale: `[D]`.
      bias: `[D]`.
      epsilon: added to the variance, at least 0; with 0 a constant row gives NaN.

    Returns:
      An array like `x`.

    Raises:
      ValueError: `scale` or `bias` is not `[D]`, their dtypes differ, `x` is not floating, or
        `epsilon` is out of range.
    """
    check_floating("x", x)
    check_shape("scale", scale, x.shape[-1:], "[D]")
    check_shape("bias", bias, x.shape[-1:], "[D]")
    check_same_dtype("bias", bias, "scale", scale)  # their gradients share it
    if not 0.0 <= epsilon < float("inf"):
        raise ValueError(f"epsilon={epsilon}; give a small number of at least 0, such as 1e-6")
    return _layer_norm(x, scale, bias, epsilon)


def _channels(vector: jax.Array, ndim: int) -> jax.Array:
    """`[D]` as float32 `[1, ..., 1, D]`."""
    return vector.astype(jnp.float32).reshape((1,) * (ndim - 1) + vector.shape)


def _normalized(x, scale, bias, epsilon):
    return _forward(x, scale, bias, epsilon)[0]


def _forward(x, scale, bias, epsilon):
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + epsilon)
    normalized = centred * inverse
    y = normalized * _channels(scale, x.ndim) + _channels(bias, x.ndim)
    return y.astype(x.dtype), (normalized.astype(x.dtype), inverse, scale)


def _backward(epsilon, saved, gradient):
    """`dx = (g - mean(g) - n mean(g n)) / deviation` with n normalised and `g = scale dy`."""
    normalized, inverse, scale = saved
    wide, n = gradient.astype(jnp.float32), normalized.astype(jnp.float32)
    tokens = tuple(range(gradient.ndim - 1))
    of_scale, of_bias = jnp.sum(wide * n, axis=tokens), jnp.sum(wide, axis=tokens)
    g = wide * _channels(scale, wide.ndim)
    mean_g = jnp.mean(g, axis=-1, keepdims=True)
    mean_gn = jnp.mean(g * n, axis=-1, keepdims=True)
    of_x = (g - mean_g - n * mean_gn) * inverse
    return of_x.astype(gradient.dtype), of_scale.astype(scale.dtype), of_bias.astype(scale.dtype)


_layer_norm = with_backward_pass(_normalized, _forward, _backward, nondiff_argnums=(3,))
