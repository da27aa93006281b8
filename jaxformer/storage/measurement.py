"""What the figures of an evaluation depend on: only those measured alike are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxformer.config import Config
from jaxformer.storage.changes import Change, flatten

VALIDATION_TEXT = "data.validation_text"  # by its digest


class SelectionMetric(NamedTuple):
    """A metric of the validation split that may choose the best checkpoint.

    Attributes:
      higher_is_better: the highest value wins; False: the lowest.
      settings: maps the flat configuration, value by dotted path, to the fields that the metric
        depends on besides the model and the text. Rounding (model.dtype, the devices, the
        batches) does not count.
    """

    higher_is_better: bool
    settings: Callable[[Mapping[str, Any]], Sequence[str]] = lambda values: ()


class Ranking(NamedTuple):
    """How the checkpoints of a run are ranked.

    Attributes:
      metrics: those of its task that can choose a checkpoint, by name.
      best_metric: the name of the one that chooses.
    """

    metrics: Mapping[str, SelectionMetric]
    best_metric: str

    @property
    def higher_is_better(self) -> bool:
        return self.metrics[self.best_metric].higher_is_better

    def by(self, metric: str) -> Ranking:
        """The same ranking with another metric."""
        return self._replace(best_metric=metric)


def measurement(
    identity: Mapping[str, Any] | None, ranking: Ranking, changes: Iterable[Change] = ()
) -> dict[str, Any]:
    """What a figure of the validation split depends on besides the model, value by field.

    Args:
      identity: identity of the checkpoint, as its `meta` holds it; fields that it lacks have their
        defaults. None: an older version wrote none, and nothing is known.
      ranking: names the metric; one that the task does not know depends on the text alone.
      changes: since that checkpoint.
    """
    if identity is None:
        return {}
    values = dict(_defaults())
    for section, fields in identity.get("config", {}).items():
        if isinstance(fields, dict):
            values |= {f"{section}.{name}": value for name, value in fields.items()}
    if "validation" in identity.get("corpus", {}):
        values[VALIDATION_TEXT] = identity["corpus"]["validation"]
    values |= {change.name: change.new for change in changes}
    metric = ranking.metrics.get(ranking.best_metric)
    names = [VALIDATION_TEXT, *(metric.settings(values) if metric else ())]
    return {name: values[name] for name in names if name in values}


@functools.cache
def _defaults() -> dict[str, Any]:
    return flatten(Config())


def measured_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether figures with these two `measurement`s can be compared.

    Only fields in both are compared. If just one depends on a field, such as `decoding.alpha`,
    another field differs too, such as `training.eval_beam_size`.
    """
    return all(one[name] == other[name] for name in one.keys() & other.keys())
