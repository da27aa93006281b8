"""Positions: sinusoidal encodings (paper 3.5) and rotary embeddings (Su et al. 2021)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.ops.argument_checks import check_floating, check_shape

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

    Raises:
      ValueError: `length` is negative, or `d_model` is odd or not positive.
    """
    _check_width("d_model", d_model)
    if length < 0:
        raise ValueError(f"length={length} is negative; give the number of positions")
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

    Raises:
      ValueError: `d_model` is odd or not positive.
    """
    _check_width("d_model", d_model)
    frequencies = MAX_WAVELENGTH ** (-np.arange(0, d_model, 2) / d_model)
    frequencies = jnp.asarray(frequencies, jnp.float32).reshape((1,) * positions.ndim + (-1,))
    angles = positions[..., None].astype(jnp.float32) * frequencies
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, d_model)


def apply_rotary(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rotate each pair of channels by an angle that grows with the position (Su et al. 2021).

    `(x1, x2) -> (x1 cos a - x2 sin a, x1 sin a + x2 cos a)` with `a = pos / 10000^(2i / H)`,
    where x1 is the first half of the channels and x2 the second. Scores between a rotated query and
    a rotated key depend only on the distance between their positions.

    Args:
      x: `[B, T, N, H]`, H even.
      positions: int32 `[B, T]` or `[1, T]`.

    Returns:
      `[B, T, N, H]` in the dtype of `x`.

    Raises:
      ValueError: H is odd, `x` is not floating, or `positions` has another shape.
    """
    check_shape("x", x, (None,) * 4, "[B, T, N, H]")
    check_floating("x", x)
    _check_width("the last axis of x, H", x.shape[-1])
    rows = 1 if positions.shape[:1] == (1,) else x.shape[0]
    check_shape("positions", positions, (rows, x.shape[1]), "[B, T] or [1, T]")
    half = x.shape[-1] // 2
    frequencies = jnp.asarray(MAX_WAVELENGTH ** (-np.arange(half) / half), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * frequencies.reshape(1, 1, half)
    sin, cos = jnp.sin(angles)[:, :, None, :], jnp.cos(angles)[:, :, None, :]
    x1, x2 = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)
    return turned.astype(x.dtype)


def _check_width(name: str, size: int) -> None:
    if size < 2 or size % 2:
        raise ValueError(
            f"{name}={size}; positions need pairs of channels: give an even size, such as "
            f"{max(2, size + 1)}"
        )
