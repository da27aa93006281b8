"""What is trained: dimensions, batches, the FLOPs of a step, and the cores used."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

THREADS = 2
WARM_UP_STEPS = 3  # untimed, the first one included
LEARNING_RATE = 3e-4  # constant, so that a few updates already lower the loss
DROPOUT = LABEL_SMOOTHING = 0.1
PAD_ID, BOS_ID, FIRST_ID = 0, 2, 4
PEAK_SIZES = (512, 1024, 2048)  # of square matrices; the largest of their speeds is the peak
PEAK_SECONDS = 0.2  # at each size


class Shape(NamedTuple):
    """Dimensions of a model and a batch of `rows` pairs with `length` tokens per side, no padding.

    They repeat jaxformer's presets, so that PyTorch's process need not import JAX.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocab_size: int
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        """Target tokens of a step."""
        return self.rows * self.length


SHAPES = {
    "tiny": Shape(4, 128, 256, 4, 10_000, 128, 32),
    "small": Shape(3, 256, 1024, 8, 32_000, 64, 32),
    "base": Shape(6, 512, 2048, 8, 32_000, 16, 64),
}


class Trainer(NamedTuple):
    """A model ready to train; `run(steps)` returns the loss of the last step once it is done."""

    run: Callable[[int], float]
    parameters: int
    versions: str


def random_batch(shape: Shape) -> dict[str, np.ndarray]:
    """int32 `inputs` and `targets` `[rows, length]` without padding, the same on each call."""
    draw = np.random.default_rng(0).integers
    size = (2, shape.rows, shape.length)
    inputs, targets = draw(FIRST_ID, shape.vocab_size, size, dtype=np.int32)
    return {"inputs": inputs, "targets": targets}


def product_flops(shape: Shape) -> dict[str, float]:
    """Floating-point operations of the matrix products of one update, by kind.

    Two per multiply-add; the backward pass counts twice the forward one. Masked scores count, since
    they are computed.
    """
    attentions = 3 * shape.layers  # one in an encoder layer, two in a decoder layer
    weights = attentions * 4 * shape.d_model**2 + shape.layers * 4 * shape.d_model * shape.d_ff
    multiply_adds = {
        "layers": weights,
        "attention": attentions * 2 * shape.length * shape.d_model,
        "vocabulary": shape.d_model * shape.vocab_size,
    }
    return {name: 6.0 * shape.tokens * count for name, count in multiply_adds.items()}


def step_flops(shape: Shape) -> float:
    """Floating-point operations of all matrix products of one update."""
    return sum(product_flops(shape).values())


def pin_to_cores() -> int:
    """Pin this process to the first `THREADS` cores it may use; returns their number."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    os.sched_setaffinity(0, cores)
    return len(cores)
