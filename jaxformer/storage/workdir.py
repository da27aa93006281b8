"""A run's folder: the configuration, the tokenizer, checkpoints, metrics and samples."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from jaxformer.config import Config
from jaxformer.errors import InputError


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
        except OSError as error:
            raise InputError(
                f"{self.config_file}: cannot be read: {error.strerror}; give this user permission "
                "to read the workdir"
            ) from error
        return Config.from_json(text, str(self.config_file))

    def store_config(self, config: Config) -> None:
        """Write config.json."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.config_file, config.to_json())


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text atomically; a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
