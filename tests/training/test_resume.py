"""What a start finds in its workdir, and what it says and writes of changes."""

import dataclasses
import json

import pytest
from training_run import change, read_metrics

from jaxformer.config import Config
from jaxformer.errors import InputError
from jaxformer.storage.changes import Change, Effect
from jaxformer.storage.identity import Identity, identity_changes
from jaxformer.storage.manifest import write_manifest
from jaxformer.storage.workdir import Workdir
from jaxformer.tasks.registry import ranking_of
from jaxformer.tasks.translation import TranslationTask
from jaxformer.training.metrics import MetricsWriter
from jaxformer.training.resume import (
    Origin,
    is_measured_alike,
    record_changes,
    resumed_changes,
)
from jaxformer.training.validation import Selection, resumed_selection

IDENTITY = Identity(
    config=Config(),
    tokenizers=("t", "t"),
    corpus={"train": "aa", "validation": "bb"},
    row_multiple=8,
    versions={"jax": "1"},
    hardware={"devices": 8},
)


def origin_of(path, identity, *, allow_changes=()):
    """Of a workdir with one checkpoint, of step 60."""
    workdir = Workdir(path)
    workdir.store_config(identity.config)
    folder = workdir.checkpoints / "60"
    (folder / "meta").mkdir(parents=True)
    meta = {"identity": identity.to_dict()}
    (folder / "meta" / "metadata").write_text(json.dumps(meta))
    write_manifest(folder)
    return Origin.of(workdir, allow_changes)


def test_a_new_run_is_compared_with_nothing(tmp_path):
    origin = Origin.of(Workdir(tmp_path / "new"), ["data"])
    assert (origin.identity, origin.step, origin.allowed) == (None, None, ("data",))
    origin.check_config(Config())
    origin.check_vocabularies(())
    origin.check(IDENTITY)
    assert origin.row_multiple(Config(), {"train": "aa"}, 6) == 6


def test_a_name_that_cannot_change_is_refused_at_once(tmp_path):
    with pytest.raises(InputError, match="--allow_changes=dta: no such field or section; nearest"):
        Origin.of(Workdir(tmp_path), ["dta"])


def test_before_the_first_checkpoint_changes_are_told_and_not_refused(tmp_path, capsys):
    workdir = Workdir(tmp_path)
    workdir.store_config(Config())
    origin = Origin.of(workdir, [])
    config = change(Config(), optimizer__learning_rate=2.0)
    origin.check_config(config)
    origin.check(Identity(config=config, corpus={"train": "dd"}))
    out = capsys.readouterr().out
    assert out == "changed since the last start: optimizer.learning_rate: 1.0 -> 2.0\n"
    assert origin.row_multiple(Config(), {"train": "aa"}, 6) == 6
    with pytest.raises(InputError, match="model.d_model: 512 -> 64"):
        origin.check_config(change(Config(), model__d_model=64))


def test_the_rows_of_a_plan_outlive_the_devices_but_not_the_data(tmp_path):
    origin = origin_of(tmp_path, IDENTITY)
    longer = change(Config(), training__num_steps=9, optimizer__learning_rate=2.0)
    for needed in (1, 6, 16):
        assert origin.row_multiple(longer, {"train": "aa"}, needed) == 8
    assert origin.row_multiple(longer, {"train": "dd"}, 6) == 6
    for changes in (dict(data__tokens_per_batch=512), dict(seed=1), dict(data__batching="packed")):
        assert origin.row_multiple(change(Config(), **changes), {"train": "aa"}, 6) == 6


@pytest.mark.parametrize(("platform", "expected"), [("cpu", "buckets"), ("tpu", "packed")])
def test_the_batching_of_auto_is_that_of_the_devices_or_as_the_run_began(
    tmp_path, platform, expected
):
    settle = TranslationTask().settle
    assert settle(Config(), None, platform).data.batching == expected
    for begun in ("packed", "buckets"):
        config = change(Config(), data__batching=begun)
        assert settle(config, None, platform) == config
        resumed = origin_of(tmp_path / begun, dataclasses.replace(IDENTITY, config=config))
        stored = resumed.identity.config
        assert settle(Config(), stored, platform) == config
        resumed.check_config(settle(Config(), stored, platform))
        named = change(Config(), data__batching={"packed": "buckets"}.get(begun, "packed"))
        with pytest.raises(InputError, match=f"data.batching: '{begun}' -> "):
            resumed.check_config(settle(named, stored, platform))


def test_another_text_is_refused_unless_it_is_allowed(tmp_path):
    other = Identity(config=Config(), corpus={"train": "dd", "validation": "bb"})
    with pytest.raises(InputError, match=r"step 60.*\n  data.train_text: 'aa' -> 'dd'\n"):
        origin_of(tmp_path / "a", IDENTITY).check(other)
    origin_of(tmp_path / "b", IDENTITY, allow_changes=["data.train_text"]).check(other)


def test_changes_of_a_resumed_run_are_said_and_returned(tmp_path, capsys):
    origin = origin_of(tmp_path, IDENTITY, allow_changes=["optimizer"])
    config = change(Config(), optimizer__learning_rate=2.0, training__num_steps=9)
    now = Identity(config=config, versions={"jax": "2"}, hardware={"devices": 4})
    changes = resumed_changes(origin, now, {"identity": IDENTITY.to_dict()}, 40)
    assert [change.name for change in changes] == [
        "optimizer.learning_rate", "training.num_steps", "versions.jax", "hardware.devices",
    ]  # fmt: skip
    assert capsys.readouterr().out == (
        "changed since the last start: optimizer.learning_rate: 1.0 -> 2.0\n"
        "changed since the last start: training.num_steps: 100000 -> 9\n"
        "changed since the last start: versions.jax: '1' -> '2'\n"
        "changed since the last start: hardware.devices: 8 -> 4\n"
        "not bit-identical from here on: versions.jax, hardware.devices\n"
    )
    refused = r"(?s)step 40, .*learning_rate: 1.0 -> 2.0\n.*--allow_changes=optimizer.learning_rate"
    with pytest.raises(InputError, match=refused):
        resumed_changes(
            origin_of(tmp_path / "b", IDENTITY), now, {"identity": IDENTITY.to_dict()}, 40
        )


def test_a_checkpoint_of_an_older_version_is_compared_by_config_json(tmp_path, capsys):
    origin = Origin(Workdir(tmp_path), Identity(config=Config()), 60, ())
    changes = resumed_changes(origin, IDENTITY, {"selection": {}}, 60)
    assert changes == []
    out = capsys.readouterr().out
    assert str(tmp_path / "checkpoints" / "60") in out and "vocabulary" in out


def test_changes_are_written_to_the_metrics(tmp_path):
    writer = MetricsWriter(tmp_path / "metrics.jsonl", 60)
    record_changes(writer, 60, [])
    harmless = Change("training.num_steps", 5, 9, Effect.NOTHING)
    record_changes(writer, 60, [harmless])
    record_changes(writer, 60, [harmless, Change("hardware.devices", 8, 4, Effect.NUMERICS)])
    writer.close()
    assert read_metrics(tmp_path) == [
        {"step": 60, "split": "resume", "changes": {"training.num_steps": [5, 9]},
         "bit_identical": True},
        {"step": 60, "split": "resume",
         "changes": {"training.num_steps": [5, 9], "hardware.devices": [8, 4]},
         "bit_identical": False},
    ]  # fmt: skip


def test_a_start_from_the_same_step_writes_its_changes_in_place_of_the_last(tmp_path):
    for old in (4, 8):
        writer = MetricsWriter(tmp_path / "metrics.jsonl", 60)
        record_changes(writer, 60, [Change("hardware.devices", old, 2, Effect.NUMERICS)])
        writer.close()
    (row,) = read_metrics(tmp_path, "resume")
    assert row["changes"] == {"hardware.devices": [8, 2]}


def resume(meta, now, *, text="bb"):
    """The search that a start goes on with, and whether it is the one of the checkpoint."""
    before = Identity.from_meta(meta, "there") or IDENTITY
    identity = Identity(config=now, corpus={"train": "aa", "validation": text})
    changes = identity_changes(before, identity)
    ranking = ranking_of(now)
    return (resumed_selection(meta, changes, ranking), is_measured_alike(meta, changes, ranking))


def meta_of(config, search, *, text="bb"):
    identity = dataclasses.replace(
        IDENTITY, config=config, corpus={"train": "aa", "validation": text}
    )
    meta = {"identity": identity.to_dict(), "selection": dataclasses.asdict(search)}
    return json.loads(json.dumps(meta))


SEARCH = Selection(best=9.0, best_step=40, waiting=2)
BEAM = change(Config(), training__eval_beam_size=4)
LOSS = change(Config(), training__best_metric="loss")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Config(), change(Config(), training__num_steps=9, optimizer__learning_rate=2.0)),
        (Config(), change(Config(), decoding__tokens_per_batch=9, decoding__beam_size=9)),
        (Config(), change(Config(), decoding__alpha=1.0, decoding__length_penalty="power")),
        (Config(), change(Config(), training__label_smoothing=0.2)),
        (LOSS, change(LOSS, training__eval_beam_size=4, training__bleu_tokenize="zh")),
    ],
)
def test_the_search_goes_on_where_its_figures_compare(before, now):
    assert resume(meta_of(before, SEARCH), now) == (SEARCH, True)


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (Config(), change(Config(), decoding__max_length_extra=1), "bb"),
        (Config(), change(Config(), decoding__max_source_length=9), "bb"),
        (BEAM, change(BEAM, decoding__alpha=1.0), "bb"),
        (BEAM, change(BEAM, decoding__length_penalty="power"), "bb"),
        (Config(), BEAM, "bb"),
        (Config(), change(Config(), training__eval_sentences=3), "bb"),
        (Config(), change(Config(), training__bleu_tokenize="zh"), "bb"),
        (Config(), Config(), "another text"),
        (LOSS, change(LOSS, training__label_smoothing=0.2), "bb"),
        (LOSS, Config(), "bb"),
        (Config(), LOSS, "bb"),
    ],
)
def test_the_search_begins_anew_where_they_do_not_and_goes_on_later(before, now, text, capsys):
    search, alike = resume(meta_of(before, SEARCH), now, text=text)
    assert not alike and (search.best, search.best_step, search.waiting) == (None, 0, 0)
    assert "measured differently" in capsys.readouterr().out
    search.update(3.0, 60, higher=True)
    meta = meta_of(now, search, text=text)
    assert resume(meta, now, text=text) == (search, True)
    back, alike = resume(meta, before)
    assert not alike and (back.best, back.best_step, back.waiting) == (9.0, 40, 2)
    forth, _ = resume(meta_of(before, back), now, text=text)
    assert (forth.best, forth.best_step) == (3.0, 60) and len(forth.earlier) == 1


def test_the_search_of_an_older_version_goes_on_unless_the_metric_changed():
    meta = {"selection": {"best": 9.0, "best_step": 40, "waiting": 2}}
    assert resume(meta, change(Config(), training__eval_sentences=3)) == (SEARCH, True)
    search, alike = resume(meta, LOSS)
    assert not alike and search.best is None
    assert resume({}, Config()) == (Selection(), True)
