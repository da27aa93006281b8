"""Figures are compared with those that were measured in the same way, and with no others."""

import json

import pytest
from saved_states import make_state, ranked_by
from training_run import change

from jaxformer.config import Config, field_types
from jaxformer.errors import InputError
from jaxformer.storage.average import average_checkpoints
from jaxformer.storage.changes import config_changes, flatten
from jaxformer.storage.checkpoint import Checkpointer, list_steps, ranked_steps, resolve_checkpoint
from jaxformer.storage.identity import Identity
from jaxformer.storage.manifest import write_manifest
from jaxformer.storage.measurement import measured_alike, measurement


def identity_of(text="aa", **changes):
    config = change(Config(), **changes)
    corpus = {"train": "tt", "validation": text}
    return json.loads(json.dumps(Identity(config=config, corpus=corpus).to_dict()))


GREEDY = {
    "data.validation_text", "training.eval_sentences", "training.eval_beam_size",
    "training.bleu_lowercase", "decoding.max_length_factor", "decoding.max_length_extra",
    "decoding.max_source_length",
}  # fmt: skip
BEAM = {"decoding.alpha", "decoding.length_penalty"}


@pytest.mark.parametrize(
    ("metric", "changes", "fields"),
    [
        ("accuracy", {}, {"data.validation_text"}),
        ("loss", {}, {"data.validation_text", "training.label_smoothing"}),
        ("chrf", {}, GREEDY),
        ("bleu", {}, GREEDY | {"training.bleu_tokenize"}),
        ("chrf", {"training__eval_beam_size": 4}, GREEDY | BEAM),
        (
            "chrf",
            {"training__eval_beam_size": 4, "decoding__alpha": 0.0},
            GREEDY | {"decoding.alpha"},
        ),
    ],
)
def test_what_a_figure_depends_on(metric, changes, fields):
    found = measurement(identity_of(**changes), ranked_by(metric))
    assert found.keys() == fields
    flat = flatten(change(Config(), **changes)) | {"data.validation_text": "aa"}
    assert found == {name: flat[name] for name in fields}
    assert fields <= {*field_types(), "data.validation_text"}


def test_every_field_that_decodes_or_scores_has_been_thought_about():
    """A new one has to be taken into the measurement, or be named here with a reason."""
    ignored = {
        "decoding.beam_size": "validation searches with training.eval_beam_size",
        "decoding.tokens_per_batch": "a translation does not depend on its batch mates",
        "training.eval_every": "when, not how",
    }
    known = set(measurement(identity_of(training__eval_beam_size=4), ranked_by("bleu")))
    assert not known & ignored.keys()
    prefixes = ("decoding.", "training.eval_", "training.bleu_")
    fields = {name for name in field_types() if name.startswith(prefixes)}
    assert fields == {name for name in known | ignored.keys() if name.startswith(prefixes)}


def test_what_is_not_known_is_not_compared():
    one, other = (measurement(identity_of(text), ranked_by("bleu")) for text in ("aa", "bb"))
    assert measured_alike(one, one) and not measured_alike(one, other)
    assert (
        measurement(None, ranked_by("bleu")) == {}
        and measured_alike({}, one)
        and measured_alike(one, {})
    )
    older = identity_of()
    del older["corpus"]["validation"], older["config"]["decoding"]["max_source_length"]
    assert measured_alike(
        measurement(older, ranked_by("bleu")), other
    )  # defaults stand for lacking fields


def test_changes_are_applied_to_what_was_before():
    old, new = Config(), change(Config(), training__eval_beam_size=4, decoding__alpha=1.0)
    after = measurement(identity_of(), ranked_by("bleu"), config_changes(old, new))
    assert after == measurement(
        identity_of(training__eval_beam_size=4, decoding__alpha=1.0), ranked_by("bleu")
    )


def write_checkpoint(directory, step, metrics, **identity):
    """A folder with the parts that the search for the best reads."""
    meta = {"identity": identity_of(**identity)} if identity.pop("known", True) else {}
    for name, values in (("meta/metadata", meta), ("metrics/metrics", metrics)):
        path = directory / str(step) / name
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(values))
    write_manifest(directory / str(step))


CHANGES = [
    ("bleu", {"decoding__max_length_extra": 1}),
    ("bleu", {"training__bleu_tokenize": "zh"}),
    ("chrf", {"training__eval_sentences": 3}),
    ("chrf", {"text": "bb"}),
    ("loss", {"training__label_smoothing": 0.2}),
    ("accuracy", {"text": "bb"}),
]


@pytest.mark.parametrize(("metric", "changes"), CHANGES)
def test_the_best_is_one_of_those_measured_like_the_newest(tmp_path, metric, changes):
    sign = -1.0 if metric == "loss" else 1.0
    for step, value in enumerate((8.0, 9.0, 7.0), 1):
        write_checkpoint(tmp_path, step, {metric: sign * value})
    assert ranked_steps(tmp_path, ranked_by(metric)) == [2, 1, 3]
    for step, value in enumerate((1.0, 3.0, 2.0), 4):
        write_checkpoint(tmp_path, step, {metric: sign * value}, **changes)
    assert ranked_steps(tmp_path, ranked_by(metric)) == [5, 6, 4]
    assert resolve_checkpoint(tmp_path, "best", ranked_by(metric)) == tmp_path / "5"
    write_checkpoint(tmp_path, 7, {metric: sign * 0.5})  # and back
    assert ranked_steps(tmp_path, ranked_by(metric)) == [2, 1, 3, 7]


def test_what_does_not_touch_the_metric_ranks_on(tmp_path):
    write_checkpoint(tmp_path, 1, {"chrf": 9.0, "loss": 1.0, "accuracy": 0.9})
    changes = {"training__bleu_tokenize": "zh", "decoding__alpha": 1.0, "decoding__beam_size": 9,
               "decoding__tokens_per_batch": 77, "optimizer__learning_rate": 3.0}  # fmt: skip
    write_checkpoint(tmp_path, 2, {"chrf": 8.0, "loss": 2.0, "accuracy": 0.8}, **changes)
    for metric in ("chrf", "loss", "accuracy"):
        assert ranked_steps(tmp_path, ranked_by(metric)) == [1, 2]


def test_without_an_identity_it_counts_as_measured_alike(tmp_path):
    write_checkpoint(tmp_path, 1, {"bleu": 9.0}, known=False)
    write_checkpoint(tmp_path, 2, {"bleu": 8.0}, training__eval_sentences=3)
    write_checkpoint(tmp_path, 3, {"bleu": 7.0})
    assert ranked_steps(tmp_path, ranked_by("bleu")) == [1, 3]


def test_a_newest_one_without_a_figure_leaves_none_that_compares(tmp_path):
    write_checkpoint(tmp_path, 1, {"bleu": 9.0})
    write_checkpoint(tmp_path, 2, {"bleu": float("nan")}, training__eval_sentences=3)
    assert ranked_steps(tmp_path, ranked_by("bleu")) == []
    assert resolve_checkpoint(tmp_path, "best", ranked_by("bleu")) == tmp_path / "2"


def save(directory, steps, *, best_metric="bleu", **changes):
    identity = identity_of(**changes, training__best_metric=best_metric)
    with Checkpointer(directory, keep=2, ranking=ranked_by(best_metric)) as checkpointer:
        for step, metrics in steps.items():
            checkpointer.save(step, make_state(step), {"identity": identity}, metrics)


def test_a_change_of_a_setting_never_deletes_the_old_best(tmp_path):
    save(tmp_path, {1: {"bleu": 5.0}, 2: {"bleu": 9.0}, 3: {"bleu": 4.0}})
    other = {"decoding__max_length_extra": 1}
    save(tmp_path, {4: {"bleu": 2.0}, 5: {"bleu": 1.0}, 6: None, 7: {"bleu": 1.5}}, **other)
    assert list_steps(tmp_path) == [2, 4, 6, 7]
    assert resolve_checkpoint(tmp_path, "best", ranked_by("bleu")) == tmp_path / "4"
    save(tmp_path, {8: {"bleu": 3.0}, 9: {"bleu": 3.5}})  # and back
    assert list_steps(tmp_path) == [2, 4, 8, 9]
    assert resolve_checkpoint(tmp_path, "best", ranked_by("bleu")) == tmp_path / "2"


def test_another_metric_does_not_delete_the_best_by_the_old_one(tmp_path):
    save(tmp_path, {n: {"bleu": b, "loss": 9.0 - n} for n, b in ((1, 5.0), (2, 9.0), (3, 4.0))})
    steps = {n: {"bleu": 1.0 * n, "loss": 9.0 - n} for n in range(4, 8)}
    save(tmp_path, steps, best_metric="loss")
    assert list_steps(tmp_path) == [2, 6, 7]
    assert resolve_checkpoint(tmp_path, "best", ranked_by("loss")) == tmp_path / "7"


def test_an_average_of_the_best_says_that_others_do_not_compare(tmp_path):
    for step, value in enumerate((8.0, 9.0, 7.0), 1):
        write_checkpoint(tmp_path, step, {"bleu": value})
    write_checkpoint(tmp_path, 4, {"bleu": 1.0}, training__bleu_tokenize="zh")
    with pytest.raises(InputError) as refused:
        average_checkpoints(tmp_path, {}, count=2, choose="best", ranking=ranked_by("bleu"))
    message = str(refused.value)
    assert message.startswith("--best=2") and f"{tmp_path} holds 1 " in message
    assert "for bleu" in message and " 3 " in message and "1 to 1" in message
