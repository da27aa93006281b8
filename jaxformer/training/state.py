"""What training carries from step to step, and where it lives on the mesh."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jaxformer.parallel.sharding import parameter_shardings, path_name, replicated
from jaxformer.tasks.task import Objective
from jaxformer.training.optimizer import CONSTANTS


class TrainState(NamedTuple):
    """Parameters, optimizer state and their step.

    Attributes:
      step: int32 scalar, updates done.
      params: nested dict of the model.
      opt_state: state of the optax transformation.
      ema_params: moving average of `params`, or None.
    """

    step: jax.Array
    params: dict
    opt_state: Any
    ema_params: dict | None

    @property
    def eval_params(self) -> dict:
        """The parameters to evaluate and translate with."""
        return self.params if self.ema_params is None else self.ema_params


def state_shardings(abstract: TrainState, mesh: Mesh) -> TrainState:
    """Shardings of a state: moments and averages are sharded like their parameters.

    For any optimizer, the structure identifies the parts of its state with an entry for each
    parameter, as in `optax.tree_map_params`. An array of its parameter's shape is sharded like the
    parameter; one of another shape, such as Adafactor's means of rows and columns, is replicated,
    as are scalars.

    Raises:
      ValueError: an array belongs to no parameter, and `CONSTANTS` does not name it.
    """
    by_parameter, whole = parameter_shardings(abstract.params, mesh), replicated(mesh)
    structure = jax.tree.structure(abstract.params)

    def has_entries(node) -> bool:
        try:
            structure.flatten_up_to(node)
        except ValueError:
            return False
        return True

    def place_entry(parameter, sharding, entry):  # empty if the optimizer omits it
        return jax.tree.map(lambda x: sharding if x.shape == parameter.shape else whole, entry)

    def place(path, node):
        if has_entries(node):
            return jax.tree.map(place_entry, abstract.params, by_parameter, node)
        if node.ndim and path_name(path[-1:]) not in CONSTANTS:
            name = path_name(path)
            raise ValueError(f"no parameter matches the state array {name!r} {node.shape}")
        return whole

    return TrainState(
        step=whole,
        params=by_parameter,
        opt_state=jax.tree_util.tree_map_with_path(place, abstract.opt_state, is_leaf=has_entries),
        ema_params=None if abstract.ema_params is None else by_parameter,
    )


def make_init(objective: Objective, optimizer: optax.GradientTransformation, *, ema: bool):
    """A function of a key that gives the first `TrainState`.

    Args:
      objective: makes the parameters.
      optimizer: from `make_optimizer`.
      ema: whether to keep a moving average of the parameters.
    """

    def init(key: jax.Array) -> TrainState:
        params = objective.init(key)
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            ema_params=jax.tree.map(jnp.copy, params) if ema else None,
        )

    return init


def keep_unless(finite: jax.Array, new, old):
    """Select `new` or `old`, leaf by leaf.

    Args:
      finite: bool scalar; true selects `new`.
      new, old: trees of the same structure, shapes and dtypes.
    """
    return jax.tree.map(lambda changed, kept: jnp.where(finite, changed, kept), new, old)


def keep_counts_unless(finite: jax.Array, new, old):
    """The optimizer state `new`, its counts as in `old` if `finite` is false.

    An optimizer's own count, such as that of Adam's bias correction, counts updates; the learning
    rate schedule's counts steps and continues. The optimizer handles arrays, see `make_optimizer`.

    Args:
      finite: bool scalar.
      new, old: optimizer states of the same structure.
    """

    def select(changed, kept):
        if _counts_steps(changed) or changed.ndim:
            return changed
        return jnp.where(finite, changed, kept)

    return jax.tree.map(select, new, old, is_leaf=_counts_steps)


def at_step(state: TrainState, step: int) -> TrainState:
    """`state` as if its last updates up to `step` had been skipped."""

    def moved(leaf, value: int):
        return jax.device_put(np.asarray(value, leaf.dtype), leaf.sharding)

    def count(node):
        return node._replace(count=moved(node.count, step)) if _counts_steps(node) else node

    opt_state = jax.tree.map(count, state.opt_state, is_leaf=_counts_steps)
    return state._replace(step=moved(state.step, step), opt_state=opt_state)


def _counts_steps(node) -> bool:
    return isinstance(node, optax.ScaleByScheduleState)


def make_finite_check(mesh: Mesh):
    """The compiled function of a `TrainState`: whether all its numbers are finite, a bool scalar.

    One pass over the state; meant for states that are saved or evaluated, not for each step.
    """

    def is_finite(state: TrainState) -> jax.Array:
        leaves = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    return jax.jit(is_finite, out_shardings=replicated(mesh))
