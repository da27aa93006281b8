"""Dropout with nearly free random bits: a keyed hash of each element's index.

XLA fuses the hash into the multiplication, so no array of random bits is stored, and the mask does
not depend on how the array is sharded. `jax.random` draws the key of each call.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from jaxformer.ops.argument_checks import check_floating


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 in which each input bit flips each output bit half of the time.

    Multipliers and shifts: C. Wellons, "Prospecting for Hash Functions" (2018), lowbias32.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent uniform bits for each element: `mix(mix(index + k0) ^ k1)`.

    Args:
      key: a `jax.random.key`; its two words k0 and k1 select the stream.
      shape: of the result; element indices are taken modulo 2**32.

    Returns:
      uint32 array of `shape`.
    """
    words = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % 2**32
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
    return _mix(_mix(index + words[0]) ^ words[1])


def dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Zero each element with probability `rate` and scale the others by `1 / (1 - rate)`.

    Args:
      x: any shape and floating dtype.
      rate: probability in [0, 1], known when the function is traced; 1 gives zeros.
      key: a `jax.random.key`, used once.

    Returns:
      An array like `x`.

    Raises:
      ValueError: `rate` is not in [0, 1], or `x` is not floating.
    """
    rate = float(rate)
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate={rate}; give a probability from 0 to 1")
    check_floating("x", x)
    if rate == 0.0:
        return x
    threshold = min(round((1.0 - rate) * 2**32), 2**32 - 1)
    if threshold == 0:  # no element is kept, and the scale would be infinite
        return jnp.zeros_like(x)
    keep = random_bits(key, x.shape) < jnp.uint32(threshold)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros_like(x))
