"""What a checkpoint knows of its run: configuration, vocabularies, text, versions, hardware.

It is the entry `identity` of a checkpoint's `meta`; an average has that of its newest checkpoint.
"""

from __future__ import annotations

import dataclasses
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.config import Config
from jaxformer.data.tokenizers import JOINT_FILE, SOURCE_FILE, TARGET_FILE, Tokenizer
from jaxformer.errors import InputError
from jaxformer.storage.changes import Change, Effect, config_changes, effect_of
from jaxformer.storage.file_trees import reason
from jaxformer.storage.parameters import read_meta
from jaxformer.storage.steps import list_steps
from jaxformer.storage.workdir import Workdir
from jaxformer.version import __version__

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxformer.data.sources import Source

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")  # that decide the bits of a step
SPLITS = ("train", "validation")  # whose text decides what is trained and which checkpoint is best


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What a run is, as its checkpoints keep it; what is empty is not known.

    Attributes:
      config: vocabulary sizes filled in.
      tokenizers: fingerprints of the source's and the target's vocabulary.
      corpus: fingerprint of the text of each of `SPLITS`.
      row_multiple: the rows of every planned batch are a multiple of it; the order of the data
        follows from it, so it stays what it was on the devices that the run began on.
      versions: of the libraries and of the devices' runtime.
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
    tokenizers: tuple[Tokenizer, Tokenizer],
    source: Source,
    mesh: Mesh,
) -> Identity:
    """The identity of a run that is about to start; `row_multiple` is filled in with its plan."""
    return Identity(
        config=config,
        tokenizers=tuple(tokenizer.fingerprint for tokenizer in tokenizers),
        corpus={split: source.fingerprint(split) for split in SPLITS},
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
    """The processor as the system names it: XLA generates code for exactly that one."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")


def identity_changes(old: Identity, new: Identity) -> list[Change]:
    """The differences that `check_changes` judges; what one side does not know is not compared."""
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
    """What the run in a workdir is, and the step of the checkpoint that says so.

    Without a checkpoint, or with those of an older version, only the configuration is known, from
    config.json; None and None for a folder without a run.

    Raises:
      InputError: the folder cannot be read.
    """
    for step in reversed(list_steps(workdir.checkpoints)):
        try:
            found = read_identity(workdir.checkpoints / str(step))
        except InputError:
            continue  # restoring it says which file is damaged
        return found or Identity(config=workdir.load_config()), step
    try:
        is_run = workdir.config_file.is_file()
    except OSError as error:
        raise InputError(f"{workdir.config_file} cannot be read: {reason(error)}") from error
    return (Identity(config=workdir.load_config()) if is_run else None), None


def check_tokenizers(
    identity: Identity, tokenizers: tuple[Tokenizer, Tokenizer], workdir: Path, trained: str
) -> None:
    """Refuse vocabularies that the model was not trained with.

    Args:
      identity: of the checkpoint; fine if it knows no vocabulary.
      tokenizers: source and target, from the workdir.
      workdir: where they were read.
      trained: what the identity belongs to, for the message.

    Raises:
      InputError: another vocabulary; the message names the file.
    """
    joint = tokenizers[0] is tokenizers[1]
    names = (JOINT_FILE, JOINT_FILE) if joint else (SOURCE_FILE, TARGET_FILE)
    model = identity.config.model
    sizes = (model.vocab_size, model.output_vocab_size)
    for name, tokenizer, wanted, size in zip(
        names, tokenizers, identity.tokenizers, sizes, strict=False
    ):
        if tokenizer.fingerprint != wanted:
            raise InputError(
                f"{workdir / name} is not the vocabulary that {trained} was trained with: "
                f"{tokenizer.vocab_size:,} pieces with fingerprint {tokenizer.fingerprint} instead "
                f"of {size:,} with {wanted}; put the run's own file back"
            )


def check_checkpoint(
    folder: Path, config: Config, tokenizers: tuple[Tokenizer, Tokenizer]
) -> Identity | None:
    """Refuse to use a checkpoint with another model's configuration or vocabulary.

    Args:
      folder: from `resolve_checkpoint`, in a workdir.
      config: the workdir's.
      tokenizers: the workdir's.

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
            f"warning: {folder} does not say which vocabulary it was trained with; nothing checks "
            f"that {workdir.path} holds the right one",
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
            f"{workdir.config_file} is not of the model that {folder} was trained as:\n"
            + "".join(changed)
            + "put the run's own file back"
        )
    check_tokenizers(identity, tokenizers, workdir.path, str(folder))
    return identity
