"""The affine parts, on `ops` whose derivatives are written by hand: dense and layer norm."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from jaxformer.ops.dense import dense
from jaxformer.ops.layer_norm import layer_norm

NORM_EPSILON = 1e-6
# What a policy of `model.remat` calls a product with weights that is no wider than what it was made
# of: all but the inner ones of the feed-forward, which hold most memory for the work they take.
PROJECTION = "projection"

glorot_uniform = nn.initializers.glorot_uniform()


class Dense(nn.Module):
    """`x W + b` on the last axis: parameters `kernel [D, F]` and, with `use_bias`, `bias [F]`."""

    features: int
    use_bias: bool = True
    kernel_init: Any = glorot_uniform
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[..., D]` to `[..., F]`."""
        shape = (x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape, self.param_dtype)
        y = dense(x.astype(self.dtype), kernel.astype(self.dtype))
        if self.features <= x.shape[-1]:
            y = checkpoint_name(y, PROJECTION)
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
        return y + bias.astype(self.dtype).reshape((1,) * (y.ndim - 1) + bias.shape)


class LayerNorm(nn.Module):
    """Layer normalisation of the last axis: parameters `scale [D]` and `bias [D]`."""

    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[..., D]` to `[..., D]`."""
        width = (x.shape[-1],)
        scale = self.param("scale", nn.initializers.ones, width, self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, width, self.param_dtype)
        return layer_norm(x.astype(self.dtype), scale, bias, NORM_EPSILON)
