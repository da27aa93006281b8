"""The checks read shapes and dtypes only, so that they cost nothing where a program runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.argument_checks import (
    check_floating,
    check_integers,
    check_mask,
    check_same_dtype,
    check_shape,
)
from jaxformer.ops.attention import dot_product_attention
from jaxformer.ops.masks import causal_mask


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64"])
def test_integers_of_any_width_are_integers(dtype):
    array = np.zeros(2, dtype)
    check_integers("ids", array)
    with pytest.raises(ValueError, match=f"ids is {dtype}.*float32"):
        check_floating("ids", array)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32])
def test_floating_numbers_of_any_width_are_floating(dtype):
    array = jnp.zeros(2, dtype)
    check_floating("x", array)
    with pytest.raises(ValueError, match=f"x is {jnp.dtype(dtype)}.*int32"):
        check_integers("x", array)


def test_shapes_name_the_axes_and_their_sizes():
    check_shape("x", np.zeros((2, 3)), (None, 3), "[B, T]")
    for shape in ((2, 4), (2,), (2, 3, 1)):
        with pytest.raises(ValueError, match=r"x has shape \(2.*\[B, T\].*\(any, 3\)"):
            check_shape("x", np.zeros(shape), (None, 3), "[B, T]")


def test_dtypes_are_the_same_or_refused():
    check_same_dtype("x", np.zeros(1, np.float32), "y", jnp.zeros(1))
    with pytest.raises(ValueError, match=r"x is float64 and y is float32.*astype\(y.dtype\)"):
        check_same_dtype("x", np.zeros(1), "y", jnp.zeros(1))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 1, 5), (1, 3, 4, 1), (2, 3, 4, 5)])
def test_masks_that_broadcast_are_taken(shape):
    check_mask("mask", np.ones(shape, bool), (2, 3, 4, 5))


def test_shapes_and_dtypes_are_all_that_is_read():
    """Of abstract arrays, as in a traced function, nothing else is known."""
    array, mask = jax.ShapeDtypeStruct((1, 2, 1, 4), jnp.float32), causal_mask(2)
    out = jax.eval_shape(dot_product_attention, array, array, array, mask)
    assert out.shape == array.shape
    with pytest.raises(ValueError, match="mask is float32"):
        jax.eval_shape(dot_product_attention, array, array, array, mask.astype(jnp.float32))
