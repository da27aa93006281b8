"""What a changed field does to a resumed run, and which changes are refused."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.config import SECTIONS, Config, field_types
from jaxformer.errors import InputError


class Effect(enum.Enum):
    """What a change does to the run that resumes with it."""

    STRUCTURE = "the checkpoint no longer fits; never allowed"
    TRAINING = "other updates; only with --allow_changes"
    NUMERICS = "the same updates up to rounding; logged"
    NOTHING = "the same updates bit for bit; logged"


# By field, or by section for all fields not listed. Anything else is TRAINING, so that a change of
# a new field is refused until someone lists it.
EFFECTS = {
    "task": Effect.STRUCTURE,
    "init_from": Effect.TRAINING,
    "init_from_allow": Effect.NOTHING,  # what was loaded is in the checkpoint
    "model": Effect.STRUCTURE,
    "model.dropout_rate": Effect.TRAINING,
    "model.attention_dropout_rate": Effect.TRAINING,
    "model.activation_dropout_rate": Effect.TRAINING,
    "model.dtype": Effect.TRAINING,
    "model.attention_implementation": Effect.NUMERICS,
    "model.remat": Effect.NUMERICS,
    "model.remat_policy": Effect.NUMERICS,
    "tokenizer": Effect.STRUCTURE,
    "tokenizer.sampling_rate": Effect.TRAINING,
    "tokenizer.model_file": Effect.NOTHING,  # the vocabulary itself is compared
    "tokenizer.target_model_file": Effect.NOTHING,
    "optimizer.name": Effect.STRUCTURE,
    # Where the text is; the text itself is compared, as data.train_text and data.validation_text.
    "data.source": Effect.NOTHING,
    "data.root": Effect.NOTHING,
    "data.name": Effect.NOTHING,
    "data.source_language": Effect.NOTHING,
    "data.target_language": Effect.NOTHING,
    "data.train": Effect.NOTHING,
    "data.validation": Effect.NOTHING,
    "data.test": Effect.NOTHING,
    "data.num_pairs": Effect.NOTHING,
    "data.workers": Effect.NOTHING,
    "data.cache_dir": Effect.NOTHING,
    "training.loss_chunk_tokens": Effect.NUMERICS,
    "training.max_seconds": Effect.NOTHING,
    "training.watchdog_seconds": Effect.NOTHING,
    "training.max_skipped_steps": Effect.NOTHING,
    "training.log_every": Effect.NOTHING,
    "training.eval_every": Effect.NOTHING,
    "training.save_every": Effect.NOTHING,
    "training.keep_checkpoints": Effect.NOTHING,
    "training.best_metric": Effect.NOTHING,
    "training.patience": Effect.NOTHING,
    "training.eval_sentences": Effect.NOTHING,
    "training.eval_beam_size": Effect.NOTHING,
    "training.num_samples": Effect.NOTHING,
    "training.profile_steps": Effect.NOTHING,
    "training.bleu_tokenize": Effect.NOTHING,
    "training.bleu_lowercase": Effect.NOTHING,
    "decoding": Effect.NOTHING,
    "mesh": Effect.NOTHING,  # the resulting mesh is compared, as hardware.mesh
    "hardware": Effect.NUMERICS,
    "versions": Effect.NUMERICS,
}
# Fields that add state to a checkpoint when they are not 0; their value may change, 0 may not.
SWITCHES = ("optimizer.clip_norm", "optimizer.weight_decay", "optimizer.ema_decay")
# Fields that rolling back after a loss spike depends on, if training.spike_factor is not 0.
SPIKES = (
    "training.log_every",
    "training.save_every",
    "training.eval_every",
    "training.keep_checkpoints",
)
TEXTS = ("data.train_text", "data.validation_text")


class Change(NamedTuple):
    """One difference between a checkpoint and the start that resumes from it."""

    name: str
    old: Any
    new: Any
    effect: Effect

    def __str__(self) -> str:
        return f"{self.name}: {self.old!r} -> {self.new!r}"


def flatten(config: Config) -> dict[str, Any]:
    """Every field by its dotted path."""
    flat: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, dict):
            flat.update({f"{name}.{field}": v for field, v in value.items()})
        else:
            flat[name] = value
    return flat


def config_changes(old: Config, new: Config) -> list[Change]:
    """The fields that differ, in the configuration's order; between tasks only `task`."""
    if old.task != new.task:
        return [Change("task", old.task, new.task, effect_of("task"))]
    before, after = flatten(old), flatten(new)
    return [
        Change(name, before[name], after[name], config_effect(name, before, after))
        for name in after
        if before[name] != after[name]
    ]


def config_effect(name: str, old: dict[str, Any], new: dict[str, Any]) -> Effect:
    """What a change of one field does.

    Args:
      name: dotted path of the field.
      old, new: flat configurations, value by dotted path.
    """
    if name in SWITCHES and bool(old[name]) != bool(new[name]):
        return Effect.STRUCTURE
    if name == "training.num_steps":
        # Only the cosine schedule reads it; otherwise a run may simply be made longer.
        cosine = "cosine" in (old["optimizer.schedule"], new["optimizer.schedule"])
        return Effect.TRAINING if cosine else Effect.NOTHING
    if name in SPIKES and (old["training.spike_factor"] or new["training.spike_factor"]):
        return Effect.TRAINING
    return effect_of(name)


def effect_of(name: str) -> Effect:
    """The effect in the tables; `config_effect` handles fields whose values matter."""
    return EFFECTS.get(name) or EFFECTS.get(name.partition(".")[0], Effect.TRAINING)


def check_names(names: Iterable[str]) -> None:
    """Raise `InputError` unless each name in `--allow_changes` is a field or section."""
    known = [*field_types(), *SECTIONS, *TEXTS]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise InputError(f"--allow_changes={name}: no such field or section; nearest: {near}")


def check_changes(
    changes: Sequence[Change], allowed: Iterable[str], workdir: Path, step: int | None
) -> None:
    """Refuse what would spoil a run.

    Args:
      changes: from the run in the workdir to this start.
      allowed: names of fields and sections that may change.
      workdir: folder of the run.
      step: step of the checkpoint to resume from; None: there is none, and only `STRUCTURE` is
        refused.

    Raises:
      InputError: the model, the tokenizer or the kind of optimizer changed, or what is trained
        changed and is not allowed to; the message lists every difference.
    """
    structure = [str(change) for change in changes if change.effect is Effect.STRUCTURE]
    if structure:
        raise InputError(
            f"{workdir} holds a run with another model, tokenizer or optimizer:\n  "
            + "\n  ".join(structure)
            + "\nchoose another --workdir, or go back to the old values"
        )
    if step is None:
        return
    allowed = set(allowed)
    refused = [
        change
        for change in changes
        if change.effect is Effect.TRAINING
        and not {change.name, change.name.partition(".")[0]} & allowed
    ]
    if refused:
        raise InputError(
            f"{workdir} resumes from step {step:,}, and these changes would alter its training:\n"
            + "".join(f"  {change}\n" for change in refused)
            + "go back to the old values, choose another --workdir, or continue with the new ones: "
            f"--allow_changes={','.join(change.name for change in refused)}"
        )
