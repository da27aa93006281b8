"""Seeded random numbers that do not depend on the version of NumPy."""

from __future__ import annotations

import numpy as np


def random_words(seed: int, stream: tuple[int, ...], count: int) -> np.ndarray:
    """Random words; raw Philox words do not depend on the version of NumPy.

    Args:
      seed: random seed of the run.
      stream: spawn key; each stream has independent words.
      count: number of words.

    Returns:
      [count] uint64.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=stream)
    return np.random.Philox(sequence).random_raw(count)
