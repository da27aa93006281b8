"""The configuration of a run: its sections together, as JSON, and the names of all fields.

`Config` is what `configs/*.py` return, what `--config.section.field=value` overrides and what a
workdir stores as `config.json`. The sections are in `config_sections.py` and `model_config.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from dataclasses import dataclass, field
from typing import Any

from jaxformer.config_sections import (
    DataConfig,
    DecodingConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from jaxformer.errors import InputError, check_choice, check_range
from jaxformer.model_config import ModelSection, TransformerConfig


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, which fills in the model's vocabulary sizes from its tokenizer."""

    task: str = "translation"  # what is trained; one of TASKS
    seed: int = 0
    init_from: str = ""  # WORKDIR or WORKDIR:CHECKPOINT whose parameters a new run starts from
    init_from_allow: str = ""  # comma-separated patterns of parameters that may differ, e.g. *head*
    model: Any = field(default_factory=TransformerConfig)  # of the task's class in MODEL_SECTIONS
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self):
        check_range("seed", self.seed, 0, 2**31 - 1)
        check_choice("task", self.task, tuple(MODEL_SECTIONS))
        if not isinstance(self.model, MODEL_SECTIONS[self.task]):
            raise InputError(
                f"task={self.task!r} needs a section model of the class "
                f"{MODEL_SECTIONS[self.task].__name__}, not {type(self.model).__name__}"
            )
        if self.init_from_allow and not self.init_from:
            raise InputError(
                f"init_from_allow={self.init_from_allow!r} without init_from; name the workdir to "
                "start from"
            )
        self.model.check_run(self)
        if self.model.param_dtype == "float16":
            raise InputError(
                "model.param_dtype='float16': the optimizer's squares of gradients vanish in it; "
                "take float32 or bfloat16 (model.dtype may be float16)"
            )
        if self.optimizer.ema_decay and self.model.param_dtype != "float32":
            raise InputError(
                f"optimizer.ema_decay={self.optimizer.ema_decay} with model.param_dtype="
                f"{self.model.param_dtype!r}: steps of 1 - ema_decay are rounded away; take "
                "param_dtype='float32' (model.dtype may be another), or ema_decay=0"
            )

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dict: what `config.json` and `ml_collections` hold."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def to_config_dict(self):
        """As an `ml_collections.ConfigDict`: what `get_config` of a config file returns."""
        import ml_collections

        return ml_collections.ConfigDict(self.to_dict())

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str = "config") -> Config:
        """Build a `Config` from nested plain values; unknown names and wrong types are refused.

        Args:
          values: sections and fields; missing ones keep their defaults.
          where: named in error messages, such as a file name.
        """
        task = check_value("task", values.get("task", cls.task), where)
        check_choice(f"{where}.task", task, tuple(MODEL_SECTIONS))
        sections, known = sections_of(task), field_types(task)
        top: dict[str, Any] = {"model": sections["model"]()}
        for name, value in values.items():
            if name in sections:
                if not isinstance(value, dict):
                    raise InputError(f"{where}: {name} must be a section of fields, not {value!r}")
                checked = {k: check_value(f"{name}.{k}", v, where, task) for k, v in value.items()}
                top[name] = sections[name](**checked)
            elif name in known:
                top[name] = check_value(name, value, where, task)
            else:
                raise unknown_field(name, where, task)
        return cls(**top)

    @classmethod
    def from_json(cls, text: str, where: str) -> Config:
        """Parse `config.json`; it is data, never executed."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{where}: not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise InputError(f"{where}: expected an object of config sections")
        return cls.from_dict(values, where)


# The section `model` of each task; the tasks themselves are TASKS of tasks/registry.py.
MODEL_SECTIONS: dict[str, type[ModelSection]] = {"translation": TransformerConfig}
SECTIONS = {  # of translation; each task has a section `model` of its own
    "model": TransformerConfig,
    "data": DataConfig,
    "tokenizer": TokenizerConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
    "mesh": MeshConfig,
}
# A field's annotation is a string if its module imports `annotations` from `__future__`.
_TYPES = {kind: kind for kind in (int, float, str, bool)}
_TYPES |= {kind.__name__: kind for kind in _TYPES}


def sections_of(task: str) -> dict[str, type]:
    """The sections of a task's configuration, by name."""
    return SECTIONS | {"model": MODEL_SECTIONS[task]}


def field_types(task: str | None = None) -> dict[str, type]:
    """Dotted path and type of every field: `{"seed": int, "model.d_model": int, ...}`.

    Args:
      task: task with these fields; None: all tasks.
    """
    paths = {f.name: _TYPES[f.type] for f in dataclasses.fields(Config) if f.type in _TYPES}
    for name in MODEL_SECTIONS if task is None else (task,):
        for section, cls in sections_of(name).items():
            paths.update({f"{section}.{f.name}": _TYPES[f.type] for f in dataclasses.fields(cls)})
    return paths


def unknown_field(path: str, where: str, task: str | None = None) -> InputError:
    """The error for a field that does not exist, with the nearest one that does.

    Args:
      path: dotted, as given.
      where: named in the message.
      task: task with these fields; None: all tasks.
    """
    known = list(field_types(task)) + list(SECTIONS)
    leaf = path.rsplit(".", 1)[-1]
    near = [k for k in known if k.rsplit(".", 1)[-1] == leaf]
    near = near or difflib.get_close_matches(path, known, n=1, cutoff=0.5)
    if not near:
        leaves = {k.rsplit(".", 1)[-1]: k for k in known}
        near = [leaves[m] for m in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.0)]
    return InputError(f"{where}.{path} does not exist; nearest: {where}.{near[0]}")


def check_value(path: str, value: Any, where: str, task: str | None = None) -> Any:
    """The value as the type of its field.

    Args:
      path: path of the field, dotted.
      value: as given.
      where: named in messages.
      task: task with this field; None: any task.

    Raises:
      InputError: there is no such field, or it has another type.
    """
    expected = field_types(task).get(path)
    if expected is None:
        raise unknown_field(path, where, task)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not expected:
        raise InputError(
            f"{where}.{path}={value!r} has the wrong type {type(value).__name__}; "
            f"expected {expected.__name__}"
        )
    return value
