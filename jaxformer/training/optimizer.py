"""Adam (paper 5.3) and the learning rate schedules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from jaxformer.config import OptimizerConfig
from jaxformer.parallel.sharding import path_name


def make_schedule(config: OptimizerConfig, *, d_model: int, num_steps: int) -> optax.Schedule:
    """The learning rate of update s = 1, 2, ... after linear warm-up over w updates.

    - paper: `rate * d_model^-0.5 * min(s^-0.5, s * w^-1.5)` (5.3); rate is a factor.
    - inverse_sqrt: `rate * min(s / w, sqrt(w / s))`; rate is the peak, reached at s = w.
    - cosine: `rate * min(s / w, (1 + cos(pi (s - w) / (num_steps - w))) / 2)`.
    - constant: `rate * min(s / w, 1)`.

    Args:
      config: schedule, learning_rate, warmup_steps.
      d_model: width of the model.
      num_steps: updates in all, where cosine reaches 0.

    Returns:
      A function of the number of updates done before this one, 0 for the first.
    """
    rate, warmup = config.learning_rate, config.warmup_steps

    def schedule(count: jax.Array) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) + 1.0
        rising = step / max(warmup, 1)
        if config.schedule == "paper":
            return rate * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)
        if config.schedule == "inverse_sqrt":
            return rate * jnp.minimum(rising, jnp.sqrt(warmup / step))
        after = 1.0
        if config.schedule == "cosine":
            share = (step - warmup) / max(num_steps - warmup, 1)
            after = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(share, 0.0, 1.0)))
        return rate * jnp.where(step < warmup, rising, after)

    return schedule


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clipping, Adam with bias correction, decoupled weight decay on matrices, learning rate."""
    steps = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    steps.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.epsilon))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=_is_matrix))
    return optax.chain(*steps, optax.scale_by_learning_rate(schedule))


def _is_matrix(params):
    """By name: scanned layers stack their vectors into arrays that look like matrices."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path).endswith(("kernel", "embedding")), params
    )
