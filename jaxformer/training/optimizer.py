"""The optimizers (Adam is the paper's, 5.3) and the learning rate schedules."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import optax

from jaxformer.config import OptimizerConfig
from jaxformer.parallel.sharding import path_name

# Arrays of optimizer states that belong to no parameter; they are replicated.
CONSTANTS = ("ns_coeffs",)  # of Muon, `[3]`
FACTORED_SIZE = 128  # sides of the smallest matrix whose second moment Adafactor factors


def make_schedule(config: OptimizerConfig, *, d_model: int, num_steps: int) -> optax.Schedule:
    """The learning rate of update s = 1, 2, ... after linear warm-up over w updates.

    - paper, also called noam: `rate * d_model^-0.5 * min(s^-0.5, s * w^-1.5)` (5.3); rate is a
      factor.
    - inverse_sqrt: `rate * min(s / w, sqrt(w / s))`; rate is the peak, reached at s = w.
    - cosine: `rate * min(s / w, (1 + cos(pi (s - w) / (num_steps - w))) / 2)`.
    - constant: `rate * min(s / w, 1)`.

    Args:
      config: schedule, learning_rate, warmup_steps.
      d_model: width of the model.
      num_steps: updates in total; cosine reaches 0 there.

    Returns:
      A function of the number of updates done before this one, 0 for the first.
    """
    rate_at = SCHEDULES[config.schedule](config, d_model, num_steps)
    return lambda count: rate_at(jnp.asarray(count, jnp.float32) + 1.0)


def _paper(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    del num_steps
    rate, warmup = config.learning_rate, config.warmup_steps
    return lambda step: rate * d_model**-0.5 * jnp.minimum(step**-0.5, step * warmup**-1.5)


def _inverse_sqrt(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    del d_model, num_steps
    rate, warmup = config.learning_rate, config.warmup_steps
    return lambda step: rate * jnp.minimum(step / warmup, jnp.sqrt(warmup / step))


def _cosine(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    del d_model
    warmup = config.warmup_steps

    def falling(step: jax.Array) -> jax.Array:
        share = (step - warmup) / max(num_steps - warmup, 1)
        return 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip(share, 0.0, 1.0)))

    return _after_warm_up(config, falling)


def _constant(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    del d_model, num_steps
    return _after_warm_up(config, lambda step: 1.0)


def _after_warm_up(config: OptimizerConfig, after: optax.Schedule) -> optax.Schedule:
    """`rate * after(s)`, preceded by linear warm-up."""
    rate, warmup = config.learning_rate, config.warmup_steps
    return lambda step: rate * jnp.where(step < warmup, step / max(warmup, 1), after(step))


# Each function takes the configuration, d_model and num_steps, and gives the rate by update s.
SCHEDULES = {
    "paper": _paper,
    "inverse_sqrt": _inverse_sqrt,
    "cosine": _cosine,
    "constant": _constant,
}


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformationExtraArgs:
    """Clipping, an optimizer of `OPTIMIZERS`, decoupled weight decay on matrices, learning rate.

    With u the optimizer's update of a parameter p, `p - rate (u + weight_decay p)`: the decay does
    not enter the moments (Loshchilov & Hutter 2019).

    Its `update` also takes a bool scalar `finite`. If it is false, the moments are unchanged; the
    updates and counts of that step must not be used.
    """
    steps = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    steps.append(OPTIMIZERS[config.name](config))
    if config.weight_decay:
        steps.append(optax.add_decayed_weights(config.weight_decay, mask=_is_matrix))
    return optax.chain(*steps, optax.scale_by_learning_rate(schedule))


def _skip_by_rates(make) -> optax.GradientTransformationExtraArgs:
    """The transformation `make(decay)`, where `decay` maps the decay rates of its moments.

    With `finite` false, a gradient counts as 0 and a rate as 1: `(1 - 1) 0 + 1 m` is m. A select
    between each moment and its update would cost 40 % more memory traffic: XLA would compute the
    moments twice, once fused into the parameters' update.
    """

    def update(gradients, state, params=None, *, finite=None, **_):
        if finite is None:
            return make(lambda rate: rate).update(gradients, state, params)
        gradients = jax.tree.map(lambda g: jnp.where(finite, g, 0.0), gradients)
        return make(lambda rate: jnp.where(finite, rate, 1.0)).update(gradients, state, params)

    return optax.GradientTransformationExtraArgs(make(lambda rate: rate).init, update)


def _skip_by_select(
    transformation: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Any transformation; where `finite` is false, its whole state is unchanged.

    It reads the whole state again. That is cheap for a small state such as Adafactor's; for
    moments of the parameters' size see `_skip_by_rates`.
    """

    def update(gradients, state, params=None, *, finite=None, **_):
        updates, changed = transformation.update(gradients, state, params)
        return updates, changed if finite is None else optax.tree.where(finite, changed, state)

    return optax.GradientTransformationExtraArgs(transformation.init, update)


def _adam(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Adam (Kingma & Ba 2015): `m / (sqrt(v) + epsilon)` of the corrected moments
    `m <- b1 m + (1 - b1) g` and `v <- b2 v + (1 - b2) g^2`."""
    return _skip_by_rates(lambda decay: _scale_by_adam(config, decay))


def _scale_by_adam(config: OptimizerConfig, decay) -> optax.GradientTransformation:
    return optax.scale_by_adam(b1=decay(config.b1), b2=decay(config.b2), eps=config.epsilon)


def _lion(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Lion (Chen et al. 2023, arXiv:2302.06675, algorithm 2): `sign(b1 m + (1 - b1) g)`, and then
    `m <- b2 m + (1 - b2) g`."""
    return _skip_by_rates(lambda decay: optax.scale_by_lion(b1=config.b1, b2=decay(config.b2)))


def _adafactor(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Adafactor (Shazeer & Stern 2018, arXiv:1804.04235), without a first moment.

    The second moment of a matrix with both sides of `FACTORED_SIZE` or more is kept as means over
    its rows and its columns, `r_i` and `c_j`: `v_ij = r_i c_j / mean(r)` (algorithm 4). That of
    other arrays is kept whole. The decay rate of update t is `1 - t^-0.8` (7.2), and `1e-30` is
    added to squared gradients. The update `g / sqrt(v)` is divided by `max(1, rms)` (6). Steps
    relative to the parameters' size (8) are not used: the schedule alone gives the learning rate.
    """
    del config  # the paper's constants
    factored = optax.scale_by_factored_rms(min_dim_size_to_factor=FACTORED_SIZE)
    return _skip_by_select(optax.chain(factored, _clip_each_by_rms()))


def _clip_each_by_rms() -> optax.GradientTransformation:
    """Divide each array by `max(1, rms)`; scanned layers are treated one by one."""

    def clip(path, update):
        first = 1 if "/layers/" in path_name(path) else 0
        axes = tuple(range(first, update.ndim))
        rms = jnp.sqrt(jnp.mean(jnp.square(update), axis=axes, keepdims=True))
        return update / jnp.maximum(1.0, rms)

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(clip, updates))


def _muon(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
    """Muon for the matrices of the layers, Adam for everything else."""

    def make(decay):
        adam = _scale_by_adam(config, decay)
        return optax.partition({"muon": _scale_by_muon(config, decay), "adam": adam}, _rule_of_each)

    return _skip_by_rates(make)


def _scale_by_muon(config: OptimizerConfig, decay) -> optax.GradientTransformation:
    """Muon (Jordan 2024): the update of a matrix `[m, n]` is its momentum with all singular values
    near 1, times `0.2 sqrt(max(m, n))`. Its root mean square is then that of a typical Adam update,
    so both share one learning rate (Liu et al. 2025, arXiv:2502.16982, 2.2)."""
    return optax.chain(
        optax.contrib.scale_by_muon(
            beta=decay(config.momentum), weight_dimension_numbers=_matrix_dimensions
        ),
        optax.stateless_with_tree_map(
            lambda update, _: 0.2 * max(update.shape[-2:]) ** 0.5 * update
        ),
    )


def _rule_of_each(params):
    """Muon for the matrices within layers; Adam for embeddings, output projection, vectors."""

    def rule(path, _):
        matrix = re.search(r"/layers?(_\d+)?/.*kernel$", path_name(path))
        return "muon" if matrix else "adam"

    return jax.tree_util.tree_map_with_path(rule, params)


def _matrix_dimensions(params):
    """Input and output axes; scanned layers have one more axis, in front."""
    return jax.tree.map(
        lambda leaf: optax.contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1), params
    )


def _is_matrix(params):
    """By name, because scanned layers stack their vectors into matrices."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path).endswith(("kernel", "embedding")), params
    )


# Each function takes the configuration and gives a transformation whose `update` takes `finite`,
# made by `_skip_by_rates` or, for any transformation, by `_skip_by_select`.
OPTIMIZERS = {
    "adam": _adam,
    "adamw": _adam,
    "adafactor": _adafactor,
    "lion": _lion,
    "muon": _muon,
}
