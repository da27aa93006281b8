"""Checks of what is known before anything runs: shapes, dtypes and Python numbers.

Broadcasting and casts would turn most of these mistakes into silently wrong results. Under `jit`
the checks run once, while the function is traced.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def check_shape(name: str, array: jax.Array, wanted: tuple[int | None, ...], axes: str) -> None:
    """Refuse an array of the wrong shape.

    Args:
      name: of the argument.
      array: anything with a shape.
      wanted: size of each axis; None: any.
      axes: the shape in letters, such as `[B, T]`.

    Raises:
      ValueError: the number of axes or a size differs.
    """
    fits = len(array.shape) == len(wanted) and all(
        size is None or size == given for size, given in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        raise ValueError(f"{name} has shape {tuple(array.shape)}; give {axes}, here ({sizes})")


def check_integers(name: str, array: jax.Array) -> None:
    """Refuse ids, positions and the like that are not integers.

    Raises:
      ValueError: the dtype is not an integer type.
    """
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} is {array.dtype}; give integers, such as {name}.astype('int32')")


def check_floating(name: str, array: jax.Array) -> None:
    """Refuse integers and bool, to which a result would be rounded.

    Raises:
      ValueError: the dtype is not floating.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise ValueError(
            f"{name} is {array.dtype}; give floating numbers, such as {name}.astype('float32')"
        )


def check_same_dtype(name: str, array: jax.Array, other_name: str, other: jax.Array) -> None:
    """Refuse arrays of different dtypes where gradients would get a wrong one.

    Args:
      name: of the argument.
      array: anything with a dtype.
      other_name: of the argument it must agree with.
      other: anything with a dtype.

    Raises:
      ValueError: they differ.
    """
    if array.dtype != other.dtype:
        raise ValueError(
            f"{name} is {array.dtype} and {other_name} is {other.dtype}; give both the same dtype, "
            f"such as {name}.astype({other_name}.dtype)"
        )


def check_bool(name: str, mask: jax.Array) -> None:
    """Refuse a mask of numbers: an additive mask has 0 where a query may attend.

    Raises:
      ValueError: the dtype is not bool.
    """
    if mask.dtype != bool:
        added = jnp.issubdtype(mask.dtype, jnp.floating)
        repair = "== 0 if it is an additive mask" if added else "!= 0 if it holds 0 and 1"
        raise ValueError(
            f"{name} is {mask.dtype}; give bool, True = may attend, such as {name} {repair}"
        )


def check_mask(name: str, mask: jax.Array, scores: tuple[int, int, int, int]) -> None:
    """Refuse a mask that is not bool or does not fit the scores.

    Args:
      name: of the argument.
      mask: True = may attend.
      scores: sizes B, N, T and S.

    Raises:
      ValueError: the dtype is not bool; there are not four axes, since `[T, S]` and `[B, S]` look
        alike; or the sizes do not broadcast to `[B, N, T, S]`.
    """
    check_bool(name, mask)
    if len(mask.shape) != 4:
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}; give four axes, such as {name}[None, None] for "
            f"[T, S] and {name}[:, None, None] for [B, S]"
        )
    if any(given not in (1, size) for given, size in zip(mask.shape, scores, strict=True)):
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, which does not broadcast to [B, N, T, S] = "
            f"{scores}; give 1 or these sizes"
        )
