"""Where a token stands: sinusoidal encodings (paper 3.5) and rotary embeddings (Su et al. 2021)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

MAX_WAVELENGTH = 10_000.0  # paper 3.5


def sinusoidal_positions(length: int, d_model: int) -> np.ndarray:
    """The positional encodings of the paper, section 3.5.

    `PE[pos, 2i] = sin(pos / 10000^(2i / d_model))`,
    `PE[pos, 2i + 1] = cos(pos / 10000^(2i / d_model))`: a pair of columns shares its angle.

    Args:
      length: number of positions.
      d_model: width, even.

    Returns:
      float32 `[length, d_model]`; a NumPy constant, computed in float64.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd; positions come in sin and cos pairs")
    angles = np.arange(length)[:, None] / MAX_WAVELENGTH ** (np.arange(0, d_model, 2) / d_model)
    return (
        np.stack([np.sin(angles), np.cos(angles)], axis=-1)
        .reshape(length, d_model)
        .astype(np.float32)
    )


def encode_positions(positions: jax.Array, d_model: int) -> jax.Array:
    """`sinusoidal_positions` of given positions, for packed rows and single decoding steps.

    Args:
      positions: int32, any shape.
      d_model: width, even.

    Returns:
      float32 `[..., d_model]`.
    """
    frequencies = MAX_WAVELENGTH ** (-np.arange(0, d_model, 2) / d_model)
    frequencies = jnp.asarray(frequencies, jnp.float32).reshape((1,) * positions.ndim + (-1,))
    angles = positions[..., None].astype(jnp.float32) * frequencies
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, d_model)


def apply_rotary(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Turn each pair of channels by an angle that grows with the position (Su et al. 2021).

    `(x1, x2) -> (x1 cos a - x2 sin a, x1 sin a + x2 cos a)` with `a = pos / 10000^(2i / H)`,
    where x1 is the first half of the channels and x2 the second. Scores between a turned query
    and a turned key depend on the distance of their positions only.

    Args:
      x: `[B, T, N, H]`, H even.
      positions: int32 `[B, T]` or `[1, T]`.

    Returns:
      `[B, T, N, H]` in the dtype of `x`.
    """
    half = x.shape[-1] // 2
    frequencies = jnp.asarray(MAX_WAVELENGTH ** (-np.arange(half) / half), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * frequencies.reshape(1, 1, half)
    sin, cos = jnp.sin(angles)[:, :, None, :], jnp.cos(angles)[:, :, None, :]
    x1, x2 = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)
    return turned.astype(x.dtype)
