"""Open a trained run: the one way from a workdir to a model with its parameters."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.parallel.sharding import place_like_parameters
from jaxformer.storage.checkpoint import load_params, resolve_checkpoint
from jaxformer.storage.identity import check_checkpoint
from jaxformer.storage.workdir import Workdir
from jaxformer.tasks.registry import ranking_of, task_of
from jaxformer.tasks.task import Objective, Task


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run in a workdir, without parameters: each checkpoint has its own.

    Attributes:
      workdir: folder of the run.
      config: configuration of the run.
      task: of the configuration.
      vocabularies: as `task.load_vocabularies` gives them.
      objective: the model and its loss.
    """

    workdir: Workdir
    config: Config
    task: Task
    vocabularies: Any
    objective: Objective

    @classmethod
    def of(cls, workdir: str | Path) -> StoredRun:
        """Read the configuration and the vocabularies of a workdir.

        Raises:
          InputError: it is not the workdir of a run, or a file of it is damaged.
        """
        folder = Workdir(Path(workdir))
        config = folder.load_config()
        task = task_of(config)
        vocabularies = task.load_vocabularies(folder.path)
        return cls(folder, config, task, vocabularies, task.objective(config, vocabularies))

    def checkpoint(self, name: str = "best") -> Path:
        """The folder of a checkpoint, checked against this model and its vocabularies.

        Args:
          name: `best`, `latest`, a step, or the name of an average.

        Raises:
          InputError: there is no such checkpoint, or it belongs to another run.
        """
        folder = resolve_checkpoint(self.workdir.checkpoints, name, ranking_of(self.config))
        self.check(folder)
        return folder

    def check(self, folder: Path) -> None:
        """Raise `InputError` unless a checkpoint fits this model and its vocabularies."""
        described = self.task.describe_vocabularies(self.vocabularies)
        check_checkpoint(folder, self.config, described)

    def shapes(self) -> dict:
        """Shapes and dtypes of the parameters."""
        return jax.eval_shape(self.objective.init, jax.random.key(0))

    def load(self, folder: Path, mesh: Mesh | None = None) -> dict:
        """The parameters of a checkpoint: the moving average where there is one.

        Args:
          folder: from `checkpoint`.
          mesh: on which to place them; None: return NumPy arrays.

        Raises:
          InputError: the checkpoint is damaged, or of another model.
        """
        shapes = self.shapes()
        return load_params(folder, shapes if mesh is None else place_like_parameters(shapes, mesh))


def find_checkpoint(name: str) -> tuple[StoredRun, Path]:
    """The run and the checkpoint folder that `WORKDIR` or `WORKDIR:CHECKPOINT` names.

    Without a checkpoint it is the best. A colon before a slash belongs to the workdir, as in
    `gs://bucket/run`.

    Raises:
      InputError: there is no such run or checkpoint, or a file of it is damaged.
    """
    workdir, colon, checkpoint = name.rpartition(":")
    if not colon or "/" in checkpoint:
        workdir, checkpoint = name, "best"
    stored = StoredRun.of(workdir)
    return stored, stored.checkpoint(checkpoint)


@dataclasses.dataclass(frozen=True)
class OpenedRun:
    """A run with the parameters of one of its checkpoints.

    Attributes:
      stored: the run.
      folder: folder of the checkpoint.
      params: its parameters; on the given mesh, else NumPy arrays.
    """

    stored: StoredRun
    folder: Path
    params: dict

    @property
    def config(self) -> Config:
        return self.stored.config

    @property
    def vocabularies(self) -> Any:
        return self.stored.vocabularies

    @property
    def objective(self) -> Objective:
        return self.stored.objective


def open_run(workdir: str | Path, checkpoint: str = "best", mesh: Mesh | None = None) -> OpenedRun:
    """Open a trained run.

    Args:
      workdir: folder of the run.
      checkpoint: `best`, `latest`, a step, or the name of an average.
      mesh: on which to place the parameters; None: return NumPy arrays.

    Raises:
      InputError: there is no such run or checkpoint, or one of its files is damaged.

    Example:
      >>> run = open_run("runs/pocket")
      >>> logits = run.objective.model.apply({"params": run.params}, inputs, decoder_inputs)
    """
    stored = StoredRun.of(workdir)
    folder = stored.checkpoint(checkpoint)
    return OpenedRun(stored, folder, stored.load(folder, mesh))
