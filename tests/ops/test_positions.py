import math

import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest

from jaxformer.ops.positions import apply_rotary, encode_positions, sinusoidal_positions


def test_sinusoidal_entries_by_hand():
    """For d_model=4 the angles are pos and pos / 100; a pair of columns shares its angle."""
    table = sinusoidal_positions(4, 4)
    assert table.dtype == np.float32
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(4)]
    np.testing.assert_allclose(table, expected, atol=1e-7)
    np.testing.assert_allclose(table[0], [0, 1, 0, 1])
    np.testing.assert_allclose(table[1], [0.84147098, 0.54030231, 0.00999983, 0.99995], atol=1e-7)


def test_sinusoidal_table_equals_the_paper():
    np.testing.assert_allclose(
        sinusoidal_positions(50, 16), reference.positional_encoding(range(50), 16), atol=1e-7
    )


@pytest.mark.parametrize(("length", "tolerance"), [(100, 1e-5), (1024, 1e-4)])
def test_encoded_positions_equal_the_table(length, tolerance):
    table = sinusoidal_positions(length, 16)
    every = encode_positions(jnp.arange(length, dtype=jnp.int32), 16)
    assert every.dtype == jnp.float32
    np.testing.assert_allclose(every, table, atol=tolerance)
    packed = jnp.array([[0, 1, 2, 0, 1], [99, 0, 0, 1, 98]], jnp.int32)
    np.testing.assert_allclose(encode_positions(packed, 16), table[packed], atol=1e-5)


def sample(seed, length=5, heads=2, size=8):
    return np.random.default_rng(seed).normal(size=(1, length, heads, size)).astype(np.float32)


def test_rotary_equals_complex_rotation():
    x, positions = sample(0), np.array([[0, 1, 2, 7, 40]], np.int32)
    turned = apply_rotary(jnp.asarray(x), jnp.asarray(positions))
    for head in range(2):
        expected = reference.rotate(np.float64(x[0, :, head]), positions[0])
        np.testing.assert_allclose(turned[0, :, head], expected, atol=1e-5)


def test_rotary_scores_depend_on_the_distance_only():
    query, key = (sample(seed, length=1, heads=1) for seed in (0, 1))

    def score(query_position, key_position):
        turned = (
            apply_rotary(jnp.asarray(x), jnp.array([[position]], jnp.int32))
            for x, position in ((query, query_position), (key, key_position))
        )
        return float(jnp.sum(next(turned) * next(turned)))

    assert score(3, 1) == pytest.approx(score(10, 8), abs=1e-5)
    assert score(3, 1) == pytest.approx(score(52, 50), abs=1e-5)
    assert score(5, 5) == pytest.approx(float(np.sum(query * key)), abs=1e-5)
    assert abs(score(3, 1) - score(1, 3)) > 0.1
    assert abs(score(3, 1) - score(6, 1)) > 0.1


def test_rotary_keeps_norms_and_position_zero():
    x = sample(2)
    turned = apply_rotary(jnp.asarray(x), jnp.array([[0, 3, 9, 100, 1000]], jnp.int32))
    np.testing.assert_allclose(
        jnp.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
    )
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])


def test_rotary_keeps_the_dtype():
    x = jnp.asarray(sample(3), jnp.bfloat16)
    positions = jnp.arange(5, dtype=jnp.int32)[None]
    turned = apply_rotary(x, positions)
    assert turned.dtype == jnp.bfloat16
    wide = apply_rotary(x.astype(jnp.float32), positions)
    np.testing.assert_array_equal(turned, wide.astype(jnp.bfloat16))


@pytest.mark.parametrize("size", [1, 5, 7])
def test_rotary_refuses_an_odd_last_axis(size):
    """One channel came back as none, and five did not fit to their own angles."""
    with pytest.raises(ValueError, match=rf"H={size};.*even.*{size + 1}"):
        apply_rotary(jnp.ones((1, 3, 2, size)), jnp.arange(3, dtype=jnp.int32)[None])


@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (3,), (3, 3), (2, 3, 1)])
def test_rotary_refuses_positions_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"positions.*\[B, T\] or \[1, T\]"):
        apply_rotary(jnp.ones((2, 3, 2, 4)), jnp.zeros(shape, jnp.int32))


@pytest.mark.parametrize("x", [jnp.ones((1, 3, 4)), jnp.ones((1, 3, 2, 4), jnp.int32)])
def test_rotary_refuses_other_axes_and_integers(x):
    with pytest.raises(ValueError, match=r"x (has shape \(1, 3, 4\).*N, H|is int32.*float32)"):
        apply_rotary(x, jnp.arange(3, dtype=jnp.int32)[None])


@pytest.mark.parametrize("d_model", [-2, 0, 1, 5])
def test_a_width_that_has_no_pairs_is_refused(d_model):
    words = rf"d_model={d_model};.*such as {max(2, d_model + 1)}"
    with pytest.raises(ValueError, match=words):
        sinusoidal_positions(3, d_model)
    with pytest.raises(ValueError, match=words):
        encode_positions(jnp.arange(3, dtype=jnp.int32), d_model)


def test_a_negative_length_is_refused_and_none_is_an_empty_table():
    with pytest.raises(ValueError, match="length=-1"):
        sinusoidal_positions(-1, 4)
    assert sinusoidal_positions(0, 4).shape == (0, 4)
