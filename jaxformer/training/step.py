"""One optimizer update: a pure function, compiled for a mesh."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jaxformer.config import OptimizerConfig
from jaxformer.parallel.sharding import batch_sharding, replicated
from jaxformer.tasks.task import Objective
from jaxformer.training.state import (
    TrainState,
    keep_counts_unless,
    keep_unless,
    state_shardings,
)


def accumulate_gradients(loss_fn, params, batch, key, parts: int):
    """Gradient and metric sums of a batch, micro-batch by micro-batch.

    The rows of a micro-batch lie `parts` apart, so that each device keeps its own rows.

    Args:
      loss_fn: `(params, batch, key) -> (sum of the loss, metric sums)`, float32 scalars.
      params: parameters of the model.
      batch: arrays `[B, ...]`; `parts` divides B.
      key: random key; each micro-batch has its own.
      parts: number of micro-batches, all of the same size.
    """
    gradient_fn = jax.grad(loss_fn, has_aux=True)
    if parts == 1:
        return gradient_fn(params, batch, key)
    split = jax.tree.map(
        lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch
    )

    def add_part(total, numbered):
        index, part = numbered
        sums = gradient_fn(params, part, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, sums), None

    first = jax.tree.map(lambda x: x[0], split)
    zeros = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        jax.eval_shape(gradient_fn, params, first, key),
    )
    return jax.lax.scan(add_part, zeros, (jnp.arange(parts), split))[0]


def moving_average(params, average, update: jax.Array, decay: float):
    """`a + (1 - d) (p - a)` with `d = min(decay, (1 + n) / (10 + n))` at update n = 1, 2, ...

    The random first parameters thus lose all weight within a few hundred updates; with a constant
    decay theirs would be decay^n.

    Args:
      params: p, after the update.
      average: a, a tree like `params`.
      update: n, int32 scalar.
      decay: from 0 to 1.
    """
    d = jnp.minimum(decay, (1.0 + update) / (10.0 + update))
    return jax.tree.map(lambda a, p: a + (1.0 - d).astype(a.dtype) * (p - a), average, params)


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    config: OptimizerConfig,
    *,
    mesh: Mesh,
    abstract: TrainState,
):
    """The compiled update `(state, batch, key) -> (state, metric sums)`; the state is donated.

    The gradient is that of the loss summed over the global batch, divided by its weight: the number
    of target tokens in translation. The key of an update is `fold_in(key, step)`.

    An update whose loss or gradient is not finite is skipped: the step and the learning rate
    schedule count it, parameters, moments and average stay as they are, and the metric sum
    `skipped` is 1 instead of 0. A gradient whose norm is above 1.8e19 counts as not finite: its
    square overflows float32, and with it Adam's second moment.

    Args:
      objective: the loss.
      optimizer: from `make_optimizer`.
      config: accumulation and moving average.
      mesh: that shards state and batch.
      abstract: shapes and dtypes of the state.
    """

    def loss_fn(params, batch, key):
        sums = objective.loss_sums(params, batch, key=key, mesh=mesh)
        return sums["loss"], sums

    def train_step(state: TrainState, batch, key):
        key = jax.random.fold_in(key, state.step)
        gradients, sums = accumulate_gradients(
            loss_fn, state.params, batch, key, config.accumulation_steps
        )
        scale = 1.0 / jnp.maximum(sums["weight"], 1.0)
        gradients = jax.tree.map(lambda g: g * scale.astype(g.dtype), gradients)
        norm = optax.tree.norm(gradients)
        finite = jnp.isfinite(sums["loss"]) & jnp.isfinite(norm)
        updates, opt_state = optimizer.update(
            gradients, state.opt_state, state.params, finite=finite
        )
        opt_state = keep_counts_unless(finite, opt_state, state.opt_state)
        params = keep_unless(finite, optax.apply_updates(state.params, updates), state.params)
        ema_params = state.ema_params
        if ema_params is not None:
            average = moving_average(params, ema_params, state.step + 1, config.ema_decay)
            ema_params = keep_unless(finite, average, ema_params)
        sums |= {"gradient_norm": norm, "skipped": 1.0 - finite}
        return TrainState(state.step + 1, params, opt_state, ema_params), sums

    shardings = state_shardings(abstract, mesh)
    return jax.jit(
        train_step,
        in_shardings=(shardings, batch_sharding(mesh), replicated(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )
