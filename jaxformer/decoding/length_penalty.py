"""The two length penalties of the field, by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.config_sections import LENGTH_PENALTIES
from jaxformer.errors import check_choice


def length_penalty(name: str, lengths: jax.Array, alpha: float) -> jax.Array:
    """What a log-probability is divided by, so that long hypotheses can win against short ones.

    gnmt: `((5 + L) / 6)^alpha` (Wu et al. 2016, equation 14; the paper, section 6.1).
    power: `L^alpha`, as fairseq and Marian have it; alpha = 1 is the mean over tokens.
    The two differ in scale and in ranking: an alpha tuned for one is not meant for the other.

    Args:
      name: `gnmt` or `power`.
      lengths: int array of any shape, generated tokens with EOS.
      alpha: exponent; 0 makes the penalty 1.

    Returns:
      float32 array of the shape of `lengths`.

    Raises:
      InputError: `name` is neither.
    """
    check_choice("length_penalty", name, LENGTH_PENALTIES)
    tokens = lengths.astype(jnp.float32)
    base = (5.0 + tokens) / 6.0 if name == "gnmt" else tokens
    return base**alpha
