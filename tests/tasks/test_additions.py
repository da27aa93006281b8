"""What docs/architecture.md says of additions: a package adds one of each, and all are used."""

import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import config_sections
from jaxformer.config import MODEL_SECTIONS, Config, DataConfig
from jaxformer.data.sources import SOURCES, make_source
from jaxformer.decoding.engine import IndexedCache, decode
from jaxformer.parallel import sharding
from jaxformer.tasks.open_run import open_run
from jaxformer.tasks.registry import TASKS
from jaxformer.training.loop import train
from jaxformer.training.optimizer import OPTIMIZERS

PACKAGE = {
    # models/: a module, its section, and the sharding of its parameters.
    "model.py": """
        from dataclasses import dataclass

        import flax.linen as nn

        from jaxformer.model_config import ModelSection

        PARAMETER_AXES = [(r"hidden/kernel", ("embed", "ff")), (r"hidden/bias", ("ff",)),
                          (r"out/kernel", ("ff", None)), (r"out/bias", (None,))]


        @dataclass(frozen=True, kw_only=True)
        class PerceptronConfig(ModelSection):
            width: int = 16


        class Perceptron(nn.Module):
            config: PerceptronConfig

            @nn.compact
            def __call__(self, x):
                hidden = nn.relu(nn.Dense(self.config.width, name="hidden")(x))
                return nn.Dense(2, name="out")(hidden)
    """,
    # data/: a dataset, and a source of sentence pairs.
    "data.py": """
        import numpy as np

        from jaxformer.data.dataset import ArrayDataset


        def rings(count, seed):
            "Points inside and outside of the unit circle, with their class."
            points = np.random.default_rng(seed).uniform(-1.5, 1.5, (count, 2))
            inside = (points**2).sum(axis=1) < 1.0
            return {"x": points.astype(np.float32), "y": inside.astype(np.int32)}


        def ring_dataset(count, seed, rows, **how):
            return ArrayDataset(rings(count, seed), rows=rows, seed=seed, **how)


        class Reversed:
            "Words and the same words from behind."
            splits = ("train",)

            def __init__(self, config, seed):
                self.count = config.num_pairs

            def pairs(self, split):
                for number in range(self.count):
                    yield f"word{number}", f"{number}drow"

            def fingerprint(self, split):
                return f"reversed {self.count}"

            def describe(self, split):
                return "reversed words"
    """,
    # tasks/: the objective, its data and its metrics.
    "task.py": """
        import jax
        import jax.numpy as jnp
        import optax

        from jaxformer.evaluation.evaluator import LossEvaluator
        from jaxformer.storage.measurement import SelectionMetric
        from jaxformer.tasks.task import Objective, Task

        from .data import ring_dataset, rings
        from .model import Perceptron


        class Classification(Objective):
            def __init__(self, config):
                self.model = Perceptron(config)

            def init(self, key):
                return self.model.init(key, jnp.zeros((1, 2)))["params"]

            def loss_sums(self, params, batch, *, key=None, mesh=None):
                logits = self.model.apply({"params": params}, batch["x"])
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
                right = jnp.argmax(logits, axis=-1) == batch["y"]
                weights = batch["weights"]
                return {"loss": weights @ losses, "accuracy": weights @ right,
                        "weight": jnp.sum(weights)}


        class ClassificationTask(Task):
            selection_metrics = {"accuracy": SelectionMetric(True), "loss": SelectionMetric(False)}

            def open_data(self, config):
                return config.seed

            def fingerprints(self, data):
                return {"train": f"rings {data}", "validation": f"rings {data}"}

            def objective(self, config, vocabularies):
                return Classification(config.model)

            def training_data(self, config, data, vocabularies, *, planned_rows, row_multiple):
                rows = config.data.tokens_per_batch // row_multiple * row_multiple
                return ring_dataset(512, data, rows)

            def evaluator(self, config, objective, data, vocabularies, mesh, params):
                held_out = {"validation": ring_dataset(256, 99, 64, shuffle=False)}
                return LossEvaluator(objective, mesh, params, held_out)
    """,
    # optimizers and strategies.
    "extras.py": """
        from dataclasses import dataclass
        from typing import ClassVar

        import jax
        import jax.numpy as jnp
        import optax

        from jaxformer.decoding.strategies import Greedy
        from jaxformer.training.optimizer import _skip_by_select


        def sign(config):
            return _skip_by_select(optax.chain(optax.trace(config.b1), optax.scale_by_sign()))


        @dataclass(frozen=True)
        class SecondBest(Greedy):
            "The second most probable token, until the limit."

            def advance(self, space, step, log_probs, state):
                _, best = jax.lax.top_k(log_probs[:, 0], 2)
                forced = jnp.full_like(log_probs, -1e9).at[:, 0].set(log_probs[:, 0])
                chosen = jax.nn.one_hot(best[:, 1], log_probs.shape[-1])[:, None] * 1e6
                return super().advance(space, step, forced + chosen, state)
    """,
    "__init__.py": """
        from jaxformer import config_sections
        from jaxformer.data.sources import SOURCES
        from jaxformer.tasks.registry import register_task
        from jaxformer.training.optimizer import OPTIMIZERS

        from .data import Reversed
        from .extras import sign
        from .model import PARAMETER_AXES, PerceptronConfig
        from .task import ClassificationTask

        register_task("rings", ClassificationTask(), PerceptronConfig, PARAMETER_AXES)
        OPTIMIZERS["sign"] = sign
        config_sections.OPTIMIZER_NAMES += ("sign",)
        SOURCES["reversed"] = Reversed
        config_sections.SOURCE_NAMES += ("reversed",)
    """,
}


@pytest.fixture
def family(tmp_path, monkeypatch):
    """The package, imported; all that it added is taken back."""
    folder = tmp_path / "family"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(textwrap.dedent(text))
    for table in (TASKS, MODEL_SECTIONS, OPTIMIZERS, SOURCES):
        for name in ("rings", "sign", "reversed"):
            monkeypatch.delitem(table, name, raising=False)
    for name in ("OPTIMIZER_NAMES", "SOURCE_NAMES"):
        monkeypatch.setattr(config_sections, name, getattr(config_sections, name))
    monkeypatch.setattr(sharding, "_other_parameter_axes", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    before = {id(table): dict(table) for table in (TASKS, MODEL_SECTIONS, OPTIMIZERS, SOURCES)}
    import family

    yield family
    for table in (TASKS, MODEL_SECTIONS, OPTIMIZERS, SOURCES):
        table.clear()
        table.update(before[id(table)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "family"]:
        del sys.modules[name]


def test_a_task_a_model_a_dataset_and_an_optimizer_train_together(family, tmp_path):
    """On a mesh that shards the model, resumed in between."""
    values = {
        "task": "rings",
        "data": {"tokens_per_batch": 64, "max_length": 2},
        "optimizer": {"name": "sign", "schedule": "constant", "learning_rate": 0.01,
                      "warmup_steps": 1},
        "training": {"num_steps": 120, "eval_every": 60, "save_every": 60, "log_every": 60,
                     "best_metric": "accuracy"},
        "mesh": {"data": 2, "fsdp": 2, "tensor": 2},
    }  # fmt: skip
    config = Config.from_dict(values)
    assert type(config.model).__name__ == "PerceptronConfig"
    train(config, tmp_path / "run")
    run = open_run(tmp_path / "run", "latest")
    points = sys.modules["family.data"].rings(400, 7)
    logits = run.objective.model.apply({"params": run.params}, points["x"])
    accuracy = np.mean(np.argmax(logits, axis=-1) == points["y"])
    assert accuracy > 0.85  # all of one class: 0.65


def test_a_strategy_decodes(family):
    """Of the tokens 3, 4 and 5 with falling probability, the second one at each step."""
    strategy = sys.modules["family.extras"].SecondBest()
    logits = jnp.log(jnp.array([1e-9, 1e-9, 1e-9, 0.6, 0.3, 0.1]))

    def step_fn(tokens, cache):
        return jnp.tile(logits, (tokens.shape[0], 1, 1)), cache._replace(index=cache.index + 1)

    result = jax.jit(
        lambda: decode(
            step_fn, IndexedCache(), strategy, batch_size=2, bos_id=1, eos_id=2, pad_id=0,
            max_length=4,
        )
    )()  # fmt: skip
    assert result.tokens[0, 0, :3].tolist() == [4, 4, 4]


def test_a_source_is_found_by_its_name(family):
    config = DataConfig(source="reversed", num_pairs=100)
    source = make_source(config, seed=0)
    assert next(source.pairs("train")) == ("word0", "0drow") and source.splits == ("train",)
