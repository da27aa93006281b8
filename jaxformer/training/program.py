"""The training program: state and compiled update of a task with an optimizer."""

from __future__ import annotations

import functools

import jax
from jax.sharding import Mesh

from jaxformer.config import OptimizerConfig
from jaxformer.parallel.sharding import with_shardings
from jaxformer.tasks.task import Objective
from jaxformer.training.optimizer import make_optimizer, make_schedule
from jaxformer.training.state import TrainState, make_init, state_shardings
from jaxformer.training.step import make_train_step


class TrainingProgram:
    """State and update of a task; compiles and computes only on first use.

    Attributes:
      schedule: the learning rate of an update, by the number of those done.
      init: `key -> TrainState`.
    """

    def __init__(self, objective: Objective, optimizer: OptimizerConfig, num_steps: int):
        """
        Args:
          objective: what is optimized.
          optimizer: schedule, optimizer, accumulation, moving average.
          num_steps: updates that the schedule spans.
        """
        self._objective, self._settings = objective, optimizer
        self.schedule = make_schedule(optimizer, d_model=objective.d_model, num_steps=num_steps)
        self._optimizer = make_optimizer(optimizer, self.schedule)
        self.init = make_init(objective, self._optimizer, ema=optimizer.ema_decay > 0.0)

    @functools.cached_property
    def shapes(self) -> TrainState:
        """Shapes and dtypes of the state."""
        return jax.eval_shape(self.init, jax.random.key(0))

    def abstract(self, mesh: Mesh) -> TrainState:
        """Shapes, dtypes and shardings of the state on a mesh."""
        return with_shardings(self.shapes, state_shardings(self.shapes, mesh))

    def first_state(self, key: jax.Array, mesh: Mesh) -> TrainState:
        """The state before the first update, each array created on its own devices."""
        shardings = state_shardings(self.shapes, mesh)
        return jax.jit(self.init, out_shardings=shardings)(key)

    def train_step(self, mesh: Mesh):
        """The update `(state, batch, key) -> (state, metric sums)`, see `make_train_step`."""
        return make_train_step(
            self._objective,
            self._optimizer,
            self._settings,
            mesh=mesh,
            abstract=self.shapes,
        )
