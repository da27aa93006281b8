"""The random keys of a run: each stream depends on the seed alone."""

from __future__ import annotations

import jax

from jaxformer.config import Config

# Added to the seed. Do not change them: a resumed run must draw the same numbers as an
# uninterrupted one.
STREAMS = {"parameters": 0, "training": 1}


def initial_key(config: Config) -> jax.Array:
    """The key of the first parameters."""
    return jax.random.key(config.seed + STREAMS["parameters"])


def training_key(config: Config) -> jax.Array:
    """The key of dropout and all other randomness in updates; each folds in its step."""
    return jax.random.key(config.seed + STREAMS["training"])
