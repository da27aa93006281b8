"""From what a start goes on: the checks before anything is made, and what is logged of changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxformer.config import Config
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.storage.changes import (
    Change,
    Effect,
    check_changes,
    check_names,
    config_changes,
)
from jaxformer.storage.identity import (
    Identity,
    check_tokenizers,
    identity_changes,
    newest_identity,
)
from jaxformer.storage.measurement import measured_alike, measurement
from jaxformer.storage.workdir import Workdir
from jaxformer.training.metrics import RESUME, MetricsWriter, log

BEST_METRIC = "training.best_metric"


class Origin(NamedTuple):
    """What a workdir holds when a run starts in it.

    Attributes:
      workdir: of the run.
      identity: of the newest checkpoint, or config.json alone; None: no run is there.
      step: of that checkpoint; None: there is none.
      allowed: names of fields and sections that may change.
    """

    workdir: Workdir
    identity: Identity | None
    step: int | None
    allowed: tuple[str, ...]

    @classmethod
    def of(cls, workdir: Workdir, allow_changes: Sequence[str]) -> Origin:
        """Look into a workdir.

        Raises:
          InputError: a name in `allow_changes` does not exist, or config.json is damaged.
        """
        check_names(allow_changes)
        return cls(workdir, *newest_identity(workdir), tuple(allow_changes))

    def check_config(self, config: Config) -> None:
        """Refuse a configuration before text is read for it; see `check_changes`."""
        if self.identity is not None:
            changes = config_changes(self.identity.config, config)
            check_changes(changes, self.allowed, self.workdir.path, self.step)

    def check_tokenizers(self, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
        """Refuse other vocabularies before a corpus is tokenised with them."""
        if self.identity is not None:
            trained = f"the run in {self.workdir.path}"
            check_tokenizers(self.identity, tokenizers, self.workdir.path, trained)

    def check(self, identity: Identity) -> None:
        """Refuse a run that is not this one; without a checkpoint, say what is different.

        With one, the changes are logged when it is restored: it may not be the newest.
        """
        if self.identity is None:
            return
        changes = identity_changes(self.identity, identity)
        check_changes(changes, self.allowed, self.workdir.path, self.step)
        if self.step is None:
            log_changes(changes)

    def row_multiple(self, config: Config, corpus: dict[str, str], needed: int) -> int:
        """Rows that a plan counts in: the run's own as long as its data are, else `needed`.

        The order of the data follows from this number, so it outlives a change of devices.
        """
        if self.step is None or not self.identity.row_multiple:
            return needed
        changed = [
            change.name
            for change in config_changes(self.identity.config, config)
            if change.effect is Effect.TRAINING and change.name.startswith(("data.", "seed"))
        ]
        same_text = self.identity.corpus.get("train") == corpus["train"]
        return self.identity.row_multiple if same_text and not changed else needed


def resumed_changes(
    origin: Origin, identity: Identity, meta: dict[str, Any], step: int
) -> list[Change]:
    """What differs between the checkpoint that was restored and this start; logs it.

    Args:
      origin: from before the start.
      identity: of this start.
      meta: of the restored checkpoint, which is not the newest if that one is damaged.
      step: of the restored checkpoint.

    Raises:
      InputError: what is trained changed, and is not allowed to.
    """
    where = str(origin.workdir.checkpoints / str(step))
    restored = Identity.from_meta(meta, where)
    if restored is None:
        log(
            f"{where} does not say which text and which vocabulary it was trained with; that they "
            "are the same is not checked"
        )
        restored = origin.identity or identity
    changes = identity_changes(restored, identity)
    check_changes(changes, origin.allowed, origin.workdir.path, step)
    log_changes(changes)
    return changes


def log_changes(changes: Sequence[Change]) -> None:
    """Say what is different; nothing if there is nothing."""
    for change in changes:
        log(f"changed since the last start: {change}")
    rounding = [change.name for change in changes if change.effect is Effect.NUMERICS]
    if rounding:
        log(f"not bit-identical from here on: {', '.join(rounding)}")


def record_changes(writer: MetricsWriter, step: int, changes: Sequence[Change]) -> None:
    """Write the changes of a resumed run to metrics.jsonl, as the split `resume`."""
    if changes:
        values = {
            "changes": {change.name: [change.old, change.new] for change in changes},
            "bit_identical": all(change.effect is Effect.NOTHING for change in changes),
        }
        writer.write(step, RESUME, values)


def search_measures(
    meta: dict[str, Any], changes: Sequence[Change]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the search for the best checkpoint goes by before and after changes, value by field.

    Args:
      meta: of the restored checkpoint. One of an older version has no identity: then only a change
        of training.best_metric is known.
      changes: since it was saved.
    """
    identity = Identity.from_meta(meta, "the restored checkpoint")
    sought = {} if identity is None else {BEST_METRIC: identity.config.training.best_metric}
    chosen = [change for change in changes if change.name == BEST_METRIC]
    before = sought | {change.name: change.old for change in chosen}
    after = sought | {change.name: change.new for change in chosen}
    known = meta.get("identity")
    before |= measurement(known, before.get(BEST_METRIC, ""))
    after |= measurement(known, after.get(BEST_METRIC, ""), changes)
    return before, after


def is_measured_alike(meta: dict[str, Any], changes: Sequence[Change]) -> bool:
    """Whether the search of a checkpoint goes on after changes: figures compare, as `best` does."""
    return measured_alike(*search_measures(meta, changes))
