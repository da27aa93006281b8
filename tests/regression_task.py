"""A second task, as small as one can be: a line through points. No line of jaxformer knows it.

python tests/regression_task.py train WORKDIR [STEPS], or any command of `python -m jaxformer`.
"""

import contextlib
import dataclasses
import os
import signal
import sys

import jax.numpy as jnp
import numpy as np

from jaxformer.__main__ import main
from jaxformer.config import (
    MODEL_SECTIONS,
    Config,
    DataConfig,
    MeshConfig,
    OptimizerConfig,
    TrainingConfig,
)
from jaxformer.data.dataset import ArrayDataset, ArraySpec
from jaxformer.evaluation.evaluator import LossEvaluator
from jaxformer.model_config import ModelSection
from jaxformer.storage.measurement import SelectionMetric
from jaxformer.tasks.registry import TASKS, register_task
from jaxformer.tasks.task import Objective, Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressionConfig(ModelSection):
    features: int = 4


class Regression(Task, Objective):
    selection_metrics = {"loss": SelectionMetric(False)}

    def open_data(self, config):
        x = np.random.default_rng(config.seed).normal(size=(200, config.model.features))
        data = {"x": x.astype(np.float32), "y": x.sum(axis=1).astype(np.float32)}
        return {
            "train": slice(0, 150),
            "validation": slice(150, 180),
            "test": slice(180, 200),
        }, data

    def fingerprints(self, data):
        return {"train": str(data[1]["y"][:150].sum()), "validation": str(data[1]["y"][150:].sum())}

    def objective(self, config, vocabularies):
        return self

    def init(self, key):
        return {"line": {"slope": 0.1 * jax_normal(key), "offset": jnp.zeros(())}}

    def loss_sums(self, params, batch, *, key=None, mesh=None):
        y = batch["x"] @ params["line"]["slope"] + params["line"]["offset"]
        weights = batch["weights"]
        return {"loss": jnp.sum(weights * (y - batch["y"]) ** 2), "weight": jnp.sum(weights)}

    def split(self, config, data, name, rows, **how):
        splits, arrays = data
        return ArrayDataset({k: v[splits[name]] for k, v in arrays.items()}, rows=rows, **how)

    def training_data(self, config, data, vocabularies, *, planned_rows, row_multiple):
        rows = config.data.tokens_per_batch // row_multiple * row_multiple
        return self.split(config, data, "train", rows, seed=config.seed)

    def evaluator(self, config, objective, data, vocabularies, mesh, params):
        splits = {name: self.split(config, data, name, 8, shuffle=False) for name in data[0]}
        return LossEvaluator(objective, mesh, params, splits)

    def planned_spec(self, config, length, row_multiple, *, training=True):
        rows = config.data.tokens_per_batch
        return {"x": ArraySpec((rows, 4), "float32"), "y": ArraySpec((rows,), "float32"),
                "weights": ArraySpec((rows,), "float32")}  # fmt: skip


def jax_normal(key):
    import jax

    return jax.random.normal(key, (4,))


def register():
    """Make the task known to this process."""
    axes = [(r"line/slope", (None,)), (r"line/offset", ())]
    register_task("regression", Regression(), RegressionConfig, parameter_axes=axes)


@contextlib.contextmanager
def registered():
    """The task is known meanwhile: other tests count the tasks that there are."""
    register()
    yield
    for table in (TASKS, MODEL_SECTIONS):
        del table["regression"]


def regression_config(**training):
    settings = {"num_steps": 60, "log_every": 10, "eval_every": 20, "save_every": 10} | training
    return Config(
        task="regression",
        seed=3,
        model=RegressionConfig(),
        data=DataConfig(max_length=2, tokens_per_batch=16),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=0.05, warmup_steps=1),
        training=TrainingConfig(best_metric="loss", num_samples=0, **settings),
        mesh=MeshConfig(),
    )


def train_until_killed(workdir, kill_at):
    """Train; at the update number `kill_at` the process kills itself. 0: never."""
    from jaxformer.training import loop
    from jaxformer.training.metrics import Progress

    advance, count = Progress.advance, iter(range(1, 1000))

    def advance_or_die(progress):
        advance(progress)
        if next(count) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    Progress.advance = advance_or_die
    return loop.train(regression_config(), workdir).exit_status


if __name__ == "__main__":
    register()
    if sys.argv[1] == "train":
        sys.exit(train_until_killed(sys.argv[2], int(sys.argv[3])))
    sys.exit(main(sys.argv[1:]))
