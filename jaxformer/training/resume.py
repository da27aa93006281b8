"""Resuming a run: the checks before anything is created, and the log of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.config import Config
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.storage.changes import (
    Change,
    Effect,
    check_changes,
    check_names,
    config_changes,
)
from jaxformer.storage.identity import (
    Identity,
    check_vocabularies,
    identity_changes,
    newest_identity,
)
from jaxformer.storage.measurement import Ranking, measured_alike, measurement
from jaxformer.storage.workdir import Workdir
from jaxformer.training.metrics import RESUME, MetricsWriter, log

BEST_METRIC = "training.best_metric"


class Origin(NamedTuple):
    """What a workdir holds when a run starts in it.

    Attributes:
      workdir: folder of the run.
      identity: identity of the newest checkpoint, or from config.json alone; None: there is no run.
      step: step of that checkpoint; None: there is none.
      allowed: names of fields and sections that may change.
    """

    workdir: Workdir
    identity: Identity | None
    step: int | None
    allowed: tuple[str, ...]

    @classmethod
    def of(cls, workdir: Workdir, allow_changes: Sequence[str]) -> Origin:
        """Read a workdir.

        Raises:
          InputError: a name in `allow_changes` does not exist, or config.json is damaged.
        """
        check_names(allow_changes)
        return cls(workdir, *newest_identity(workdir), tuple(allow_changes))

    def check_task(self, config: Config) -> None:
        """Refuse another task, before it reads the configuration of the existing run."""
        if self.identity is not None and self.identity.config.task != config.task:
            self.check_config(config)

    def check_config(self, config: Config) -> None:
        """Refuse a configuration before reading text for it; see `check_changes`."""
        if self.identity is not None:
            changes = config_changes(self.identity.config, config)
            check_changes(changes, self.allowed, self.workdir.path, self.step)

    def check_vocabularies(self, vocabularies: Sequence[Vocabulary]) -> None:
        """Refuse other vocabularies before tokenising a corpus with them."""
        if self.identity is not None:
            trained = f"the run in {self.workdir.path}"
            check_vocabularies(self.identity, vocabularies, self.workdir.path, trained)

    def check(self, identity: Identity) -> None:
        """Refuse another run; without a checkpoint, log the changes.

        With one, `resumed_changes` logs them: the restored checkpoint may not be the newest.
        """
        if self.identity is None:
            return
        changes = identity_changes(self.identity, identity)
        check_changes(changes, self.allowed, self.workdir.path, self.step)
        if self.step is None:
            log_changes(changes)

    def row_multiple(self, config: Config, corpus: Mapping[str, str], needed: int) -> int:
        """The row multiple of the plan: the run's own while its data are the same, else `needed`.

        The order of the data follows from this number, so it survives a change of devices.

        Args:
          config: configuration of this start.
          corpus: fingerprints of the data by split.
          needed: row multiple of the current devices.
        """
        if self.step is None or not self.identity.row_multiple:
            return needed
        changed = [
            change.name
            for change in config_changes(self.identity.config, config)
            if change.effect is Effect.TRAINING and change.name.startswith(("data.", "seed"))
        ]
        same_text = self.identity.corpus.get("train") == corpus.get("train")
        return self.identity.row_multiple if same_text and not changed else needed


def resumed_changes(
    origin: Origin, identity: Identity, meta: dict[str, Any], step: int
) -> list[Change]:
    """What differs between the checkpoint that was restored and this start; logs it.

    Args:
      origin: what the workdir held before the start.
      identity: identity of this start.
      meta: `meta` of the restored checkpoint, which is not the newest if that one is damaged.
      step: step of the restored checkpoint.

    Raises:
      InputError: a change that alters the training is not allowed.
    """
    where = str(origin.workdir.checkpoints / str(step))
    restored = Identity.from_meta(meta, where)
    if restored is None:
        log(
            f"{where} does not record its text and its vocabulary; nothing checks that they are "
            "the same"
        )
        restored = origin.identity or identity
    changes = identity_changes(restored, identity)
    check_changes(changes, origin.allowed, origin.workdir.path, step)
    log_changes(changes)
    return changes


def log_changes(changes: Sequence[Change]) -> None:
    """Log each change, and whether the run stays bit-identical."""
    for change in changes:
        log(f"changed since the last start: {change}")
    rounding = [change.name for change in changes if change.effect is Effect.NUMERICS]
    if rounding:
        log(f"not bit-identical from here on: {', '.join(rounding)}")


def record_changes(writer: MetricsWriter, step: int, changes: Sequence[Change]) -> None:
    """Write the changes of a resumed run to metrics.jsonl, as the split `resume`.

    Args:
      writer: writer of metrics.jsonl.
      step: step of the restored checkpoint.
      changes: since then; without any, no row is written.
    """
    if changes:
        values = {
            "changes": {change.name: [change.old, change.new] for change in changes},
            "bit_identical": all(change.effect is Effect.NOTHING for change in changes),
        }
        writer.write(step, RESUME, values)


def search_measures(
    meta: dict[str, Any], changes: Sequence[Change], ranking: Ranking
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the search for the best checkpoint depends on before and after changes, by field.

    Args:
      meta: `meta` of the restored checkpoint. Without an identity (an older version) only a
        change of training.best_metric is known.
      changes: since it was saved.
      ranking: ranking of the checkpoints; its metric is that of the search after the changes.
    """
    identity = Identity.from_meta(meta, "the restored checkpoint")
    sought = {} if identity is None else {BEST_METRIC: identity.config.training.best_metric}
    chosen = [change for change in changes if change.name == BEST_METRIC]
    before = sought | {change.name: change.old for change in chosen}
    after = sought | {change.name: change.new for change in chosen}
    known = meta.get("identity")
    before |= measurement(known, ranking.by(before.get(BEST_METRIC, "")))
    after |= measurement(known, ranking.by(after.get(BEST_METRIC, "")), changes)
    return before, after


def is_measured_alike(meta: dict[str, Any], changes: Sequence[Change], ranking: Ranking) -> bool:
    """Whether the search of a checkpoint continues after changes: as `best` compares figures.

    Args:
      meta, changes, ranking: see `search_measures`.
    """
    return measured_alike(*search_measures(meta, changes, ranking))
