"""What a run needs before its first step: its task, vocabularies, data, program and state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.dataset import Dataset
from jaxformer.evaluation.evaluator import Evaluator
from jaxformer.parallel.mesh import check_divides, describe_mesh, make_mesh, row_multiple
from jaxformer.runtime.distributed import barrier, first_process_first, is_first_process
from jaxformer.storage.identity import Identity, identify
from jaxformer.storage.workdir import Workdir
from jaxformer.tasks.open_run import find_checkpoint
from jaxformer.tasks.registry import checked_task
from jaxformer.tasks.task import Objective, Task
from jaxformer.training.checks.attention_check import check_attention
from jaxformer.training.metrics import log
from jaxformer.training.program import TrainingProgram
from jaxformer.training.resume import Origin
from jaxformer.training.state import TrainState, make_finite_check


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything fixed about a run; the state is what changes.

    Attributes:
      config: settled, with the sizes of the vocabularies.
      workdir: folder of the run.
      origin: what the workdir held before this start.
      identity: identity of this start.
      task: of the configuration.
      objective: its model and loss.
      dataset: the training split.
      vocabularies: as the task made or loaded them.
      evaluator: measures a split.
      validation: the validation split, from `evaluator.load`.
      mesh: device mesh.
      program: state and update.
      abstract: shapes, dtypes and shardings of the state.
      train_step: `(state, batch, key) -> (state, metric sums)`, compiled at its first call.
      is_finite: `state -> bool scalar`.
      description: the task's lines for the log.
    """

    config: Config
    workdir: Workdir
    origin: Origin
    identity: Identity
    task: Task
    objective: Objective
    dataset: Dataset
    vocabularies: Any  # of the task's own kind
    evaluator: Evaluator
    validation: Any  # of the evaluator's own kind
    mesh: Mesh
    program: TrainingProgram
    abstract: TrainState
    train_step: Callable
    is_finite: Callable[[TrainState], jax.Array]
    description: list[str]


def prepare_run(
    config: Config,
    path: Path,
    allow_changes: Sequence[str] = (),
    devices: Sequence[jax.Device] | None = None,
) -> Run:
    """Build a `Run` in the workdir `path`; trains vocabularies and tokenises where needed.

    Args:
      config: configuration of the run.
      path: the workdir.
      allow_changes: names of fields and sections that may differ from the run in the workdir,
        even though that alters its training.
      devices: to train on; None: all of the job.

    Raises:
      InputError: the configuration, the data or the workdir is unusable.
    """
    task = checked_task(config)
    workdir = Workdir(path)
    mesh = make_mesh(config.mesh, devices)
    check_divides(config.model, mesh)
    with first_process_first():  # the first one prepares a TFDS dataset
        data = task.open_data(config)
    origin = Origin.of(workdir, allow_changes)
    begun = None if origin.identity is None else origin.identity.config
    origin.check_task(config)
    if config.init_from and origin.step is None:
        find_checkpoint(config.init_from)  # before any text is read
    config = task.settle(config, begun, mesh.devices.flat[0].platform)
    origin.check_config(config)
    barrier()  # all read the workdir before the first process writes to it
    with first_process_first():
        vocabularies = task.make_vocabularies(config, data, path)
    described = task.describe_vocabularies(vocabularies)
    origin.check_vocabularies(described)
    config = task.with_vocabularies(config, vocabularies)
    rows = row_multiple(mesh, config.optimizer.accumulation_steps)
    identity = identify(config, described, task.fingerprints(data), mesh)
    origin.check(identity)
    planned_rows = origin.row_multiple(config, identity.corpus, rows)
    identity = dataclasses.replace(identity, row_multiple=planned_rows)
    if is_first_process():
        workdir.store_config(config)
    with first_process_first():
        dataset = task.training_data(
            config, data, vocabularies, planned_rows=planned_rows, row_multiple=rows
        )
    objective = task.objective(config, vocabularies)
    program = TrainingProgram(objective, config.optimizer, config.training.num_steps)
    abstract = program.abstract(mesh)
    evaluator = task.evaluator(config, objective, data, vocabularies, mesh, abstract.params)
    validation = evaluator.load("validation")
    task.check_data(config, dataset, evaluator)
    evaluated = evaluator.dataset(validation).specs()
    if attention := check_attention(objective, dataset.specs(), mesh, evaluated=evaluated):
        log(attention)
    return Run(
        config=config,
        workdir=workdir,
        origin=origin,
        identity=identity,
        task=task,
        objective=objective,
        dataset=dataset,
        vocabularies=vocabularies,
        evaluator=evaluator,
        validation=validation,
        mesh=mesh,
        program=program,
        abstract=abstract,
        train_step=program.train_step(mesh),
        is_finite=make_finite_check(mesh),
        description=task.describe(config, data, vocabularies, dataset),
    )


def count_parameters(params: Any) -> dict[str, int]:
    """Parameters by the first part of their path, and `total`."""
    counts = {
        name: sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
        for name, tree in params.items()
    }
    return counts | {"total": sum(counts.values())}


def describe_run(run: Run) -> str:
    """Lines for the log: workdir, devices, model and data."""
    steps, warmup = run.config.training.num_steps, run.config.optimizer.warmup_steps
    counts = count_parameters(run.abstract.params)
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items() if name != "total")
    model, *others = run.description or [f"model     {type(run.objective).__name__}"]
    late = (
        f"warm-up   optimizer.warmup_steps={warmup} do not end before "
        f"training.num_steps={steps}: the learning rate only rises"
    )
    return "\n".join(
        [
            f"workdir   {run.workdir.path}",
            f"devices   {describe_mesh(run.mesh)}",
            model,
            f"          {counts['total']:,} parameters: {parts}",
            *others,
            *([late] if warmup >= steps else []),
        ]
    )
