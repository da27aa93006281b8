"""What a checkpoint records about its run: configuration, vocabularies, text, versions, hardware.

It is the entry `identity` of a checkpoint's `meta`; an average has that of its newest checkpoint.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.config import Config
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.storage.changes import Change, Effect, config_changes, effect_of
from jaxformer.storage.file_trees import reason
from jaxformer.storage.parameters import read_meta
from jaxformer.storage.steps import list_steps
from jaxformer.storage.workdir import Workdir
from jaxformer.version import __version__

if TYPE_CHECKING:
    from jax.sharding import Mesh

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")  # that affect the bits of a step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What a run is, as its checkpoints record it; empty means unknown.

    Attributes:
      config: vocabulary sizes filled in.
      tokenizers: fingerprints of the vocabularies.
      corpus: fingerprints of the splits that decide what is trained and which checkpoint is best.
      row_multiple: the rows of every planned batch are a multiple of it; the order of the data
        follows from it, so a resumed run keeps it on other devices.
      versions: versions of the libraries and of the devices' runtime.
      hardware: kind and number of devices and processes, and the mesh they form.
    """

    config: Config
    tokenizers: tuple[str, ...] = ()
    corpus: dict[str, str] = dataclasses.field(default_factory=dict)
    row_multiple: int = 0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    hardware: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self) | {"tokenizers": list(self.tokenizers)}

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str) -> Identity:
        """The inverse of `to_dict`; `where` is named in messages.

        Raises:
          InputError: a part is missing or of another kind, or the configuration is of a version
            with other fields.
        """
        try:
            parts = {field.name: values[field.name] for field in dataclasses.fields(cls)}
            kinds = (dict, list, dict, int, dict, dict)
            if [type(part) for part in parts.values()] != list(kinds):
                raise TypeError("a part is of the wrong kind")
        except (KeyError, TypeError) as error:
            raise InputError(f"{where}: the identity of the run is damaged: {error!r}") from error
        parts["config"] = Config.from_dict(parts["config"], f"{where}: config")
        return cls(**parts | {"tokenizers": tuple(parts["tokenizers"])})

    @classmethod
    def from_meta(cls, meta: dict[str, Any], where: str) -> Identity | None:
        """The identity in a checkpoint's `meta`; None where an older version wrote none."""
        return cls.from_dict(meta["identity"], where) if "identity" in meta else None


def identify(
    config: Config,
    vocabularies: Sequence[Vocabulary],
    data: Mapping[str, str],
    mesh: Mesh,
) -> Identity:
    """The identity of a run about to start; its plan fills in `row_multiple`.

    Args:
      config: configuration of the run.
      vocabularies: those of its task.
      data: fingerprints by split.
      mesh: device mesh.
    """
    return Identity(
        config=config,
        tokenizers=tuple(one.fingerprint for one in vocabularies),
        corpus=dict(data),
        versions=describe_versions(mesh),
        hardware=describe_hardware(mesh),
    )


def describe_versions(mesh: Mesh) -> dict[str, str]:
    """jaxformer, the libraries below it, and the runtime of the devices (CUDA, libtpu)."""
    runtime = " ".join(mesh.devices.flat[0].client.platform_version.split())
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {"jaxformer": __version__, **versions, "runtime": runtime}


def describe_hardware(mesh: Mesh) -> dict[str, Any]:
    """What must stay the same for a resumed run to be bit-identical."""
    device = mesh.devices.flat[0]
    kind = cpu_model() if device.platform == "cpu" else device.device_kind
    return {
        "device_kind": kind,
        "devices": int(mesh.devices.size),
        "processes": len({d.process_index for d in mesh.devices.flat}),
        "mesh": " ".join(f"{name}={size}" for name, size in mesh.shape.items()),
    }


def cpu_model() -> str:
    """The processor's name from the system: XLA generates code for exactly that model."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")


def identity_changes(old: Identity, new: Identity) -> list[Change]:
    """The differences for `check_changes`; what one side does not record is not compared."""
    changes = config_changes(old.config, new.config)
    before = {f"data.{split}_text": digest for split, digest in old.corpus.items()}
    after = {f"data.{split}_text": digest for split, digest in new.corpus.items()}
    for part in ("versions", "hardware"):
        before |= {f"{part}.{name}": value for name, value in getattr(old, part).items()}
        after |= {f"{part}.{name}": value for name, value in getattr(new, part).items()}
    return changes + [
        Change(name, before[name], after[name], effect_of(name))
        for name in after
        if name in before and before[name] != after[name]
    ]


def read_identity(folder: Path) -> Identity | None:
    """The identity in a checkpoint's folder; None where an older version wrote none.

    Raises:
      InputError: the part of the checkpoint that holds it is damaged.
    """
    return Identity.from_meta(read_meta(folder), str(folder))


def newest_identity(workdir: Workdir) -> tuple[Identity | None, int | None]:
    """The identity of the run in a workdir, and the step of the checkpoint that records it.

    Without a checkpoint, or with one of an older version, only the configuration is known, from
    config.json. None and None for a folder without a run.

    Raises:
      InputError: the folder cannot be read.
    """
    for step in reversed(list_steps(workdir.checkpoints)):
        try:
            found = read_identity(workdir.checkpoints / str(step))
        except InputError:
            continue  # restoring it reports the damaged file
        return found or Identity(config=workdir.load_config()), step
    try:
        is_run = workdir.config_file.is_file()
    except OSError as error:
        raise InputError(f"{workdir.config_file} cannot be read: {reason(error)}") from error
    return (Identity(config=workdir.load_config()) if is_run else None), None


def check_vocabularies(
    identity: Identity, vocabularies: Sequence[Vocabulary], workdir: Path, trained: str
) -> None:
    """Refuse vocabularies that the model was not trained with.

    Args:
      identity: identity of the checkpoint; nothing is refused if it records no vocabulary.
      vocabularies: from the workdir.
      workdir: where they were read.
      trained: what the identity belongs to, for the message.

    Raises:
      InputError: another vocabulary; the message names the file.
    """
    for vocabulary, wanted in zip(vocabularies, identity.tokenizers, strict=False):
        if vocabulary.fingerprint != wanted:
            raise InputError(
                f"{workdir / vocabulary.file} is not the vocabulary that {trained} was trained "
                f"with: {vocabulary.size:,} entries with fingerprint {vocabulary.fingerprint} "
                f"instead of {wanted}; put the run's own file back"
            )


def check_checkpoint(
    folder: Path, config: Config, vocabularies: Sequence[Vocabulary]
) -> Identity | None:
    """Refuse to use a checkpoint with another model's configuration or vocabulary.

    Args:
      folder: from `resolve_checkpoint`, in a workdir.
      config: the workdir's.
      vocabularies: the workdir's.

    Returns:
      The checkpoint's identity; None, after a warning, if an older version wrote none.

    Raises:
      InputError: the workdir's configuration or vocabulary is not what the checkpoint was trained
        with.
    """
    workdir = Workdir(folder.parent.parent)
    identity = read_identity(folder)
    if identity is None:
        print(
            f"warning: {folder} does not record its vocabulary; nothing checks that "
            f"{workdir.path} holds the right one",
            file=sys.stderr,
        )
        return None
    changed = [
        f"  {change}\n"
        for change in config_changes(identity.config, config)
        if change.effect is Effect.STRUCTURE and change.name.startswith("model.")
    ]
    if changed:
        raise InputError(
            f"{workdir.config_file} is not of the model in {folder}:\n"
            + "".join(changed)
            + "put the run's own file back"
        )
    check_vocabularies(identity, vocabularies, workdir.path, str(folder))
    return identity
