"""A run's folder: the configuration, the tokenizer, checkpoints, metrics and samples."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from jaxformer.config import Config
from jaxformer.errors import InputError

# Fields that decide the shape or the meaning of what a workdir already holds.
FIXED_SECTIONS = ("model", "tokenizer")
# Fields of those sections that may change between two starts of a run.
FREE_FIELDS = {
    "model.remat",
    "model.remat_policy",
    "model.attention_implementation",
    "tokenizer.sampling_rate",
    "model.dtype",
    "model.dropout_rate",
    "model.attention_dropout_rate",
    "model.activation_dropout_rate",
}
# Fields that add state to a checkpoint when they are not 0; their value may change, 0 may not.
SWITCHES = ("optimizer.clip_norm", "optimizer.weight_decay", "optimizer.ema_decay")


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Paths of a run's folder.

    Attributes:
      path: the folder.
    """

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    def load_config(self) -> Config:
        """The configuration of the run.

        Raises:
          InputError: the folder is not a workdir, or its config.json is damaged.
        """
        if not self.config_file.is_file():
            raise InputError(
                f"{self.path} is not the workdir of a run: it has no config.json; make one with "
                f"python train.py --workdir={self.path}"
            )
        try:
            text = self.config_file.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.config_file}: not UTF-8: {error}") from error
        return Config.from_json(text, str(self.config_file))

    def check_config(self, config: Config) -> list[str]:
        """The differences to the stored configuration, `field: old -> new`; none if there is none.

        Raises:
          InputError: the folder holds a run with another model, tokenizer or kind of optimizer.
        """
        if not self.config_file.is_file():
            return []
        old, new = flatten(self.load_config()), flatten(config)
        changed = [name for name in new if old[name] != new[name]]
        differences = {name: f"{name}: {old[name]!r} -> {new[name]!r}" for name in changed}
        fixed = [
            line
            for name, line in differences.items()
            if (name.split(".")[0] in FIXED_SECTIONS and name not in FREE_FIELDS)
            or name == "optimizer.name"
            or (name in SWITCHES and bool(old[name]) != bool(new[name]))
        ]
        if fixed:
            raise InputError(
                f"{self.path} holds a run with another model, tokenizer or optimizer:\n  "
                + "\n  ".join(fixed)
                + "\nchoose another --workdir, or go back to the old values"
            )
        return list(differences.values())

    def store_config(self, config: Config) -> list[str]:
        """Write config.json after `check_config`, and return the differences."""
        differences = self.check_config(config)
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config_file, config.to_json())
        return differences


def flatten(config: Config) -> dict[str, object]:
    """Every field by its dotted path."""
    flat: dict[str, object] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{field}": v for field, v in value.items()})
        else:
            flat[name] = value
    return flat


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text at once; a reader sees the old or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)
