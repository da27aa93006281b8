"""The keyed hash behind dropout must behave like independent random bits.

Bounds are 5 standard deviations of what independent bits would give; keys are fixed.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxformer.ops.dropout import dropout, random_bits

ROWS, COLUMNS = 512, 1000
SIZE = ROWS * COLUMNS


def mask(seed, rate=0.3, shape=(ROWS, COLUMNS)):
    """1 where an element is kept."""
    return np.asarray(dropout(jnp.ones(shape), rate, jax.random.key(seed))) > 0


def correlation(first, second):
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def chi_square(cells, count):
    """Standard deviations from its mean of the chi-square statistic of `count` equal cells."""
    seen = np.bincount(cells.ravel(), minlength=count)
    expected = cells.size / count
    statistic = float(np.sum((seen - expected) ** 2) / expected)
    return (statistic - (count - 1)) / np.sqrt(2.0 * (count - 1))


@pytest.fixture(scope="module")
def bits():
    return np.asarray(random_bits(jax.random.key(7), (ROWS, COLUMNS)))


def test_bits_equal_the_formula():
    """mix(mix(index + k0) ^ k1) of each row-major index, in Python integers."""

    def mix(x):
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    k0, k1 = (int(word) for word in jax.random.bits(jax.random.key(3), (2,), jnp.uint32))
    expected = [mix(mix((index + k0) % 2**32) ^ k1) for index in range(24)]
    drawn = random_bits(jax.random.key(3), (2, 3, 4))
    assert drawn.dtype == jnp.uint32
    np.testing.assert_array_equal(drawn, np.array(expected, np.uint32).reshape(2, 3, 4))


@pytest.mark.parametrize("byte", range(4))
def test_bytes_are_uniform(bits, byte):
    assert abs(chi_square((bits >> (8 * byte)) & 0xFF, 256)) < 5


@pytest.mark.parametrize("step", [1, 2, COLUMNS, 256, 65536])
def test_pairs_of_neighbours_are_uniform(bits, step):
    """The highest four bits decide an element; 16 x 16 cells of two elements `step` apart."""
    high = bits.ravel() >> 28
    assert abs(chi_square(high[:-step] * 16 + high[step:], 256)) < 5


def test_triples_of_neighbours_are_uniform(bits):
    high = bits.ravel() >> 29
    assert abs(chi_square(high[:-2] * 64 + high[1:-1] * 8 + high[2:], 512)) < 5


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_rate_scale_and_expectation(rate):
    x = jnp.full((ROWS, COLUMNS), 2.0)
    out = np.asarray(dropout(x, rate, jax.random.key(11)))
    kept = out != 0
    bound = 5 * np.sqrt(rate * (1 - rate) / SIZE)
    assert abs(kept.mean() - (1 - rate)) < bound
    np.testing.assert_allclose(out[kept], 2.0 / (1 - rate), rtol=1e-6)
    assert abs(out.mean() - 2.0) < 2.0 * bound / (1 - rate)


def test_rate_holds_in_each_row_and_column():
    kept = mask(5)
    for axis in (0, 1):
        share = kept.mean(axis)
        assert np.abs(share - 0.7).max() < 5 * np.sqrt(0.21 / kept.shape[axis])
        spread = share.std() / np.sqrt(0.21 / kept.shape[axis])
        assert 0.85 < spread < 1.15  # neither too even nor too uneven


@pytest.mark.parametrize("shift", [(0, 1), (1, 0), (1, 1), (0, 2), (256, 0)])
def test_neighbours_do_not_correlate(shift):
    kept = mask(6)
    assert abs(correlation(kept, np.roll(kept, shift, (0, 1)))) < 5 / np.sqrt(SIZE)


def test_keys_do_not_correlate():
    kept = [mask(seed) for seed in range(4)]
    step = jax.random.key(0)
    layers = [dropout(jnp.ones((ROWS, COLUMNS)), 0.3, k) for k in jax.random.split(step, 3)]
    kept += [np.asarray(layer) > 0 for layer in layers]
    steps = [
        dropout(jnp.ones((ROWS, COLUMNS)), 0.3, jax.random.fold_in(jax.random.key(1), n))
        for n in range(3)
    ]
    kept += [np.asarray(layer) > 0 for layer in steps]
    table = np.corrcoef(np.stack([k.ravel() for k in kept]))
    np.fill_diagonal(table, 0.0)
    assert np.abs(table).max() < 5 / np.sqrt(SIZE)


def test_same_key_same_mask_and_another_key_another():
    np.testing.assert_array_equal(mask(1), mask(1))
    differ = (mask(1) != mask(2)).mean()
    assert abs(differ - 2 * 0.3 * 0.7) < 0.005


def test_zero_rate_is_the_identity():
    x = jnp.arange(6.0)
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_dtype_is_kept():
    out = dropout(jnp.ones((8, 8), jnp.bfloat16), 0.5, jax.random.key(0))
    assert out.dtype == jnp.bfloat16
    assert set(np.unique(out.astype(jnp.float32))) == {0.0, 2.0}


def test_gradient_is_the_same_mask():
    x = jnp.linspace(1.0, 2.0, 1000)
    out, pull_back = jax.vjp(lambda x: dropout(x, 0.25, jax.random.key(4)), x)
    (gradient,) = pull_back(jnp.ones(1000))
    np.testing.assert_allclose(out, gradient * x, rtol=1e-6)
    np.testing.assert_allclose(np.unique(gradient), [0.0, 1 / 0.75], rtol=1e-6)


@pytest.mark.parametrize("spec", [("cut",), (None, "cut")], ids=["rows", "columns"])
def test_mask_is_the_same_on_eight_devices(spec):
    mesh = jax.make_mesh((8,), ("cut",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    x = jax.device_put(jnp.ones((ROWS, COLUMNS)), sharding)
    drop = jax.jit(lambda x: dropout(x, 0.3, jax.random.key(9)), out_shardings=sharding)
    out = drop(x)
    assert len(out.sharding.device_set) == 8
    np.testing.assert_array_equal(np.asarray(out) > 0, mask(9))


@pytest.mark.parametrize("rate", [1, 1.0, 1.0 - 1e-12])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_a_rate_of_one_gives_zeros_with_zero_gradients(rate, dtype):
    x = jnp.array([1.0, -2.0, 3e4, jnp.inf], dtype)
    out, pull_back = jax.vjp(lambda x: dropout(x, rate, jax.random.key(0)), x)
    (gradient,) = pull_back(jnp.ones(4, dtype))
    assert out.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(out, np.zeros(4))
    np.testing.assert_array_equal(gradient, np.zeros(4))


@pytest.mark.parametrize("rate", [-0.1, 1.1, 2, math.nan, math.inf, np.float32(-1)])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(ValueError, match=rf"rate={float(rate)}.*from 0 to 1"):
        dropout(jnp.ones(4), rate, jax.random.key(0))
    with pytest.raises(ValueError, match="rate="):
        jax.jit(dropout, static_argnums=1)(jnp.ones(4), float(rate), jax.random.key(0))


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_integers_are_refused_since_their_scale_would_be_rounded(rate):
    with pytest.raises(ValueError, match="x is int32.*float32"):
        dropout(jnp.arange(4, dtype=jnp.int32), rate, jax.random.key(0))


def test_a_rate_may_be_a_number_of_numpy_or_jax():
    wanted = dropout(jnp.ones(64), 0.5, jax.random.key(0))
    for rate in (np.float32(0.5), jnp.float32(0.5)):
        np.testing.assert_array_equal(dropout(jnp.ones(64), rate, jax.random.key(0)), wanted)
