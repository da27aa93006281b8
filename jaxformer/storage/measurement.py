"""What the figures of an evaluation depend on: only those that were measured alike are compared."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from jaxformer.config import Config
from jaxformer.storage.changes import Change, flatten

# What a translation of the validation split depends on, the model and its vocabulary aside; see
# `Evaluator.measure`. Rounding (model.dtype, the devices, the batches) is no other measure.
TRANSLATION = (
    "training.eval_sentences",
    "training.eval_beam_size",  # takes the place of decoding.beam_size
    "decoding.max_length_factor",
    "decoding.max_length_extra",
    "decoding.max_source_length",
)
VALIDATION_TEXT = "data.validation_text"  # by its digest


def measurement(
    identity: Mapping[str, Any] | None, metric: str, changes: Iterable[Change] = ()
) -> dict[str, Any]:
    """What a figure of the validation split depends on besides the model, value by field.

    Args:
      identity: of the checkpoint, as its `meta` holds it; fields that it lacks have their
        defaults. None: an older version wrote none, and nothing is known.
      metric: `bleu`, `chrf`, `accuracy` or `loss`.
      changes: since then.
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
    return {name: values[name] for name in _fields(metric, values) if name in values}


@functools.cache
def _defaults() -> dict[str, Any]:
    return flatten(Config())


def _fields(metric: str, values: Mapping[str, Any]) -> list[str]:
    names = [VALIDATION_TEXT]
    if metric == "loss":  # of the whole split, without dropout and so without R-Drop
        names.append("training.label_smoothing")
    if metric not in ("bleu", "chrf"):
        return names
    names += [*TRANSLATION, "training.bleu_lowercase"]
    if metric == "bleu":  # chrF counts characters
        names.append("training.bleu_tokenize")
    if values["training.eval_beam_size"] > 1:
        names.append("decoding.alpha")
        if values["decoding.alpha"]:
            names.append("decoding.length_penalty")
    return names


def measured_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether figures with these two `measurement`s can be compared.

    What one of them does not know is not compared. A field that only one of them depends on, such
    as `decoding.alpha`, stands beside another that differs, `training.eval_beam_size`.
    """
    return all(one[name] == other[name] for name in one.keys() & other.keys())
