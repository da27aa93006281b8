import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding.length_penalty import length_penalty
from jaxformer.errors import InputError


def test_gnmt_is_wu_et_al_equation_14():
    # ((5 + 1) / 6)^1 = 1, ((5 + 7) / 6)^1 = 2, ((5 + 19) / 6)^0.5 = 2
    lengths = jnp.array([1, 7, 19])
    np.testing.assert_allclose(length_penalty("gnmt", lengths, 1.0), [1.0, 2.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(
        length_penalty("gnmt", lengths, 0.5), [1.0, 1.4142135, 2.0], rtol=1e-6
    )
    np.testing.assert_allclose(length_penalty("gnmt", lengths, 0.6)[1], 1.5157166, rtol=1e-6)


def test_power_is_the_length_to_the_alpha():
    lengths = jnp.array([[1, 4], [9, 100]])
    np.testing.assert_allclose(length_penalty("power", lengths, 0.5), [[1, 2], [3, 10]], rtol=1e-6)
    np.testing.assert_allclose(length_penalty("power", lengths, 1.0), lengths, rtol=1e-6)


@pytest.mark.parametrize("name", ["gnmt", "power"])
def test_alpha_zero_is_no_penalty(name):
    penalty = length_penalty(name, jnp.arange(1, 300), 0.0)
    assert penalty.dtype == jnp.float32
    assert np.array_equal(penalty, np.ones(299))


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="length_penalty='gnnt'.*nearest: gnmt"):
        length_penalty("gnnt", jnp.array([1]), 0.6)
