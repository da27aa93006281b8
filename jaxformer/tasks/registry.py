"""The registered tasks."""

from __future__ import annotations

from collections.abc import Iterable

from jaxformer.config import MODEL_SECTIONS, Config
from jaxformer.errors import check_choice
from jaxformer.model_config import ModelSection
from jaxformer.parallel.sharding import add_parameter_axes
from jaxformer.storage.measurement import Ranking
from jaxformer.tasks.task import Task
from jaxformer.tasks.translation import TranslationTask

# By the name in `Config.task`; the model sections are MODEL_SECTIONS of config.py.
TASKS: dict[str, Task] = {
    "translation": TranslationTask(),
}


def register_task(
    name: str,
    task: Task,
    model: type[ModelSection],
    parameter_axes: Iterable[tuple[str, tuple[str | None, ...]]] = (),
) -> None:
    """Register a task of another package, in this process.

    Args:
      name: value of `Config.task`.
      task: task of that name.
      model: class of its section `model`, a frozen dataclass.
      parameter_axes: sharding rules for parameters that no model of jaxformer has.
    """
    TASKS[name], MODEL_SECTIONS[name] = task, model
    add_parameter_axes(parameter_axes)


def task_of(config: Config) -> Task:
    """The task of a run."""
    return TASKS[config.task]


def checked_task(config: Config) -> Task:
    """The task of a run.

    Raises:
      InputError: training.best_metric is none of its metrics, or it cannot work as configured.
    """
    task = task_of(config)
    metrics = tuple(task.selection_metrics)
    check_choice("training.best_metric", config.training.best_metric, metrics)
    task.check(config)
    return task


def ranking_of(config: Config) -> Ranking:
    """How the checkpoints of a run are ranked."""
    return Ranking(task_of(config).selection_metrics, config.training.best_metric)
