"""Evaluate parameters on a split: the contract of an evaluator, and the loss of any task."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.data.dataset import Dataset
from jaxformer.errors import InputError
from jaxformer.parallel.mesh import batch_share
from jaxformer.parallel.sharding import (
    batch_sharding,
    parameter_shardings,
    replicated,
    shard_batch,
)

HELD_OUT = ("test", "compositional")  # splits that are measured once a run has ended


class Samples(NamedTuple):
    """Examples of what a model does, to be read by people.

    Attributes:
      columns: their names.
      rows: a text for each column.
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Evaluation(Protocol):
    """What was measured on a split."""

    def metrics(self) -> dict[str, float]:
        """The figures, by the names that configurations and metrics.jsonl use."""

    def notes(self) -> dict[str, str]:
        """Text that belongs to the figures, such as the signature of a score."""

    def summary(self) -> str:
        """The figures in one line."""

    def samples(self) -> Samples | None:
        """Some of what the model produced; None if there is nothing to show."""


class Evaluator(Protocol):
    """Measures parameters of one model, in training and in `python -m jaxformer evaluate` alike.

    Attributes:
      splits: names of the available ones.
    """

    splits: Sequence[str]

    def load(self, split: str) -> Any:
        """A split, ready to be measured; the `specs` of its dataset are compiled.

        Raises:
          InputError: there is no such split, or it does not fit the model.
        """

    def dataset(self, data: Any) -> Dataset:
        """The batches of a split from `load`."""

    def measure(
        self,
        params: dict,
        data: Any,
        *,
        final: bool,
        description: str = "evaluating",
        alive: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Measure parameters.

        Args:
          params: parameters of the model, on the mesh.
          data: from `load`.
          final: measure in full, after the run; False: as configured for training.
          description: label of the progress bar.
          alive: called after each batch.
        """


class HasLoss(Protocol):
    """What the loss on a split needs from an `Objective`."""

    def loss_sums(self, params, batch, *, key=None, mesh=None) -> dict[str, jax.Array]: ...

    def summarize(self, sums: Mapping[str, float]) -> dict[str, float]: ...


@dataclass(frozen=True)
class LossEvaluation:
    """The loss on a split, and all other figures of an objective.

    Attributes:
      figures: values by name.
      seconds: spent measuring.
    """

    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def metrics(self) -> dict[str, float]:
        return dict(self.figures)

    def notes(self) -> dict[str, str]:
        return {}

    def summary(self) -> str:
        return "  ".join(f"{name} {value:.4g}" for name, value in self.figures.items())

    def samples(self) -> Samples | None:
        return None


class LossEvaluator:
    """Measures the loss of an objective, and nothing else.

    Args:
      objective: computes the loss.
      mesh: devices to compute on.
      params: shapes and dtypes of the parameters.
      datasets: the splits, in a fixed order.
    """

    def __init__(
        self,
        objective: HasLoss,
        mesh: Mesh,
        params: dict,
        datasets: Mapping[str, Dataset] | None = None,
    ):
        self.objective, self.mesh = objective, mesh
        self.splits, self._datasets = tuple(datasets or ()), dict(datasets or {})
        self.eval_step = jax.jit(
            lambda params, batch: objective.loss_sums(params, batch, mesh=mesh),
            in_shardings=(parameter_shardings(params, mesh), batch_sharding(mesh)),
            out_shardings=replicated(mesh),
        )

    def load(self, split: str) -> Any:
        if split not in self._datasets:
            raise InputError(f"there is no {split} split; there are: {', '.join(self.splits)}")
        return self._datasets[split]

    def dataset(self, data: Any) -> Dataset:
        return data

    def mean_loss(
        self, params: dict, dataset: Dataset, alive: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """The metrics of the objective over one epoch.

        Args:
          params: parameters of the model, on the mesh.
          dataset: dataset of the split.
          alive: called after each batch.
        """
        totals: dict[str, float] = {}
        share = batch_share(self.mesh)
        for step in range(dataset.steps_per_epoch):
            batch = dataset.batch(step, share)
            sums = self.eval_step(params, shard_batch(batch, self.mesh))
            for name, value in jax.device_get(sums).items():
                totals[name] = totals.get(name, 0.0) + float(np.float64(value))
            alive()
        return self.objective.summarize(totals)

    def measure(
        self,
        params: dict,
        data: Any,
        *,
        final: bool,
        description: str = "evaluating",
        alive: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        started = time.monotonic()
        figures = self.mean_loss(params, self.dataset(data), alive)
        return LossEvaluation(figures, time.monotonic() - started)
