"""The contract of a task: all that training, storage and planning know about it.

The set-up of a run calls the methods of `Task` in the order below. Methods with a body are
defaults, for tasks without text, without attention or without a planned length.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.dataset import BatchSpec, Dataset
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.evaluation.evaluator import Evaluator
from jaxformer.models.flops import Flops
from jaxformer.ops.attention_mask import AttentionSite
from jaxformer.storage.measurement import SelectionMetric


class Objective(Protocol):
    """What is optimized: the parameters of a model and its loss on a batch.

    Attributes:
      unit: what the loss is averaged over, in the plural, for metric names: `target_tokens`.
      dtype: dtype of the matrix products.
      d_model: width of the model, which the paper's learning rate schedule depends on.
    """

    unit: str = "examples"
    dtype: str = "float32"
    d_model: int = 1

    @abstractmethod
    def init(self, key: jax.Array) -> dict:
        """The first parameters: a nested dict of arrays, each matched by one sharding rule."""

    @abstractmethod
    def loss_sums(
        self,
        params: dict,
        batch: dict[str, jax.Array],
        *,
        key: jax.Array | None = None,
        mesh: Mesh | None = None,
    ) -> dict[str, jax.Array]:
        """Sums over a batch, float32 scalars; only that of `loss` has a gradient.

        Args:
          params: from `init`.
          batch: the arrays of a `BatchSpec`.
          key: random key for dropout and all other randomness in training; None: evaluation.
          mesh: that shards the rows; None: one device.

        Returns:
          `loss`; `weight`, the number of units to divide it by; and others of any name.
        """

    def summarize(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The metrics of summed `loss_sums`; `loss` is one of them."""
        weight = max(sums["weight"], 1.0)
        return {name: value / weight for name, value in sums.items() if name != "weight"}

    def units(self, spec: BatchSpec) -> float:
        """The most units that a batch can hold."""
        return next(iter(spec.values())).shape[0]

    def flops(self, spec: BatchSpec) -> Flops | None:
        """Operations of a forward pass over a full batch; None: unknown."""
        return None

    def training_flops(self, spec: BatchSpec) -> Flops | None:
        """Operations of an update: three forward passes, as the backward pass costs two."""
        forward = self.flops(spec)
        return None if forward is None else forward.times(3.0)

    def flops_per_unit(self, dataset: Dataset) -> float | None:
        """Mean `training_flops` of a unit of the data, padding left out; None: unknown."""
        return None

    def activation_size(self, spec: BatchSpec) -> float:
        """Approximate numbers a step keeps for its backward pass, to find the largest batch."""
        return float(sum(math.prod(array.shape) for array in spec.values()))

    def attention_sites(self, spec: BatchSpec) -> Sequence[AttentionSite]:
        """The attentions of a forward pass, to compare with the reference before step 1."""
        return ()

    def open_trips(self, spec: BatchSpec, mesh: Mesh, *, accumulation_steps: int = 0) -> int:
        """Iterations of the loop whose trip count the compiler does not report.

        Args:
          spec: spec of the global batch.
          mesh: that shards its rows.
          accumulation_steps: micro-batches of an update; 0: of an evaluation.
        """
        return 1


class BatchBudget(NamedTuple):
    """The option that sets the size of a batch, for advice when memory runs out.

    Attributes:
      field: its dotted path.
      value: now.
      smallest: smallest value that holds a batch.
    """

    field: str
    value: int
    smallest: int


class Task(Protocol):
    """What is trained and how it is measured; one stateless object for all runs.

    Attributes:
      selection_metrics: those that may choose the best checkpoint, by the evaluator's names.
      next_command: to run on a finished run, for its last log line; empty: none.
    """

    selection_metrics: Mapping[str, SelectionMetric]
    next_command: str = ""

    def check(self, config: Config) -> None:
        """Raise `InputError` for an unusable configuration, before anything is opened."""

    @abstractmethod
    def open_data(self, config: Config) -> Any:
        """Locate the data, quickly and without reading it.

        Raises:
          InputError: it is missing, or lacks a split that training needs.
        """

    def settle(self, config: Config, begun: Config | None, platform: str) -> Config:
        """The configuration, with what depends on the devices or the existing run decided.

        Args:
          config: as given.
          begun: configuration of the run in the workdir; None: there is none.
          platform: cpu, gpu or tpu.
        """
        return config

    def make_vocabularies(self, config: Config, data: Any, folder: Path) -> Any:
        """The vocabularies in a workdir, made from `data` if they are missing.

        Args:
          config: configuration of the run.
          data: from `open_data`.
          folder: the workdir.

        Returns:
          An object of the task's own kind, passed to the methods below.
        """
        return self.load_vocabularies(folder)

    def load_vocabularies(self, folder: Path) -> Any:
        """The vocabularies in the workdir of a run."""
        return ()

    def describe_vocabularies(self, vocabularies: Any) -> Sequence[Vocabulary]:
        """What checkpoints record about them."""
        return ()

    def with_vocabularies(self, config: Config, vocabularies: Any) -> Config:
        """The configuration with the sizes that follow from the vocabularies."""
        return config

    @abstractmethod
    def fingerprints(self, data: Any) -> Mapping[str, str]:
        """Hex digests by split, for those that training and the choice of the best read."""

    @abstractmethod
    def objective(self, config: Config, vocabularies: Any) -> Objective:
        """The model and its loss; `vocabularies` is None for a plan without data."""

    @abstractmethod
    def training_data(
        self,
        config: Config,
        data: Any,
        vocabularies: Any,
        *,
        planned_rows: int,
        row_multiple: int,
    ) -> Dataset:
        """The training split.

        Args:
          config: configuration of the run, settled.
          data: from `open_data`.
          vocabularies: from `make_vocabularies`.
          planned_rows: the rows of a batch are a multiple of it; the order of the data may depend
            on it, so a resumed run keeps it on other devices.
          row_multiple: that of the current devices; empty rows fill each batch if it does not
            divide `planned_rows`.
        """

    @abstractmethod
    def evaluator(
        self,
        config: Config,
        objective: Objective,
        data: Any,
        vocabularies: Any,
        mesh: Mesh,
        params: dict,
    ) -> Evaluator:
        """The evaluator that measures parameters on a split.

        Args:
          config: configuration of the run.
          objective: from `objective`.
          data: from `open_data`; None: the caller gives data to the evaluator.
          vocabularies: from `load_vocabularies`.
          mesh: devices to compute on.
          params: shapes and dtypes of the parameters.
        """

    def check_data(self, config: Config, dataset: Dataset, evaluator: Evaluator) -> None:
        """Check that the data fits the model.

        Args:
          config: configuration of the run.
          dataset: from `training_data`.
          evaluator: from `evaluator`.

        Raises:
          InputError: it does not.
        """

    def describe(self, config: Config, data: Any, vocabularies: Any, dataset: Dataset) -> list[str]:
        """Lines for the log of a start: model, data and batches, each with its heading.

        Args:
          config: configuration of the run.
          data: from `open_data`.
          vocabularies: from `make_vocabularies`.
          dataset: from `training_data`.
        """
        return []

    def batch_budget(self, config: Config, row_multiple: int, longest: int = 0) -> BatchBudget:
        """The option that makes batches smaller.

        Args:
          config: configuration of the run.
          row_multiple: the rows of every batch are a multiple of it.
          longest: tokens of the longest row of the data; 0: unknown.
        """
        return BatchBudget("data.tokens_per_batch", config.data.tokens_per_batch, row_multiple)

    def planned_config(self, config: Config, platform: str) -> Config:
        """The configuration settled for a plan, with vocabularies of the largest size."""
        return config

    def planned_spec(
        self, config: Config, length: int, row_multiple: int, *, training: bool = True
    ) -> BatchSpec:
        """A full batch, for a plan without data.

        Args:
          config: configuration of the run.
          length: tokens of a row.
          row_multiple: its rows are a multiple of it.
          training: False: a batch of an evaluation.
        """
        raise NotImplementedError(f"{type(self).__name__} plans no batch without data")
