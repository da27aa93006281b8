"""What a start finds in its workdir, and what it says and writes of changes."""

import dataclasses
import json
import types

import numpy as np
import pytest
from training_run import change, read_metrics

from jaxformer.config import Config
from jaxformer.errors import InputError
from jaxformer.storage.changes import Change, Effect
from jaxformer.storage.identity import Identity
from jaxformer.storage.manifest import write_manifest
from jaxformer.storage.workdir import Workdir
from jaxformer.training.metrics import MetricsWriter
from jaxformer.training.resume import (
    Origin,
    is_measured_alike,
    record_changes,
    resumed_changes,
)
from jaxformer.training.setup import with_batching

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
    origin.check_tokenizers(())
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
    device = types.SimpleNamespace(platform=platform)
    mesh = types.SimpleNamespace(devices=np.array([[device]]))
    new = Origin.of(Workdir(tmp_path / "new"), [])
    assert with_batching(Config(), new, mesh).data.batching == expected
    for begun in ("packed", "buckets"):
        config = change(Config(), data__batching=begun)
        assert with_batching(config, new, mesh) == config
        resumed = origin_of(tmp_path / begun, dataclasses.replace(IDENTITY, config=config))
        assert with_batching(Config(), resumed, mesh) == config
        resumed.check_config(with_batching(Config(), resumed, mesh))
        named = change(Config(), data__batching={"packed": "buckets"}.get(begun, "packed"))
        with pytest.raises(InputError, match=f"data.batching: '{begun}' -> "):
            resumed.check_config(with_batching(named, resumed, mesh))


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
    with pytest.raises(InputError, match="goes on from step 40, "):
        resumed_changes(
            origin_of(tmp_path / "b", IDENTITY), now, {"identity": IDENTITY.to_dict()}, 40
        )


def test_a_checkpoint_of_an_older_version_is_compared_by_config_json(tmp_path, capsys):
    origin = Origin(Workdir(tmp_path), Identity(config=Config()), 60, ())
    changes = resumed_changes(origin, IDENTITY, {"selection": {}}, 60)
    assert changes == []
    assert "60 does not say which text and which vocabulary" in capsys.readouterr().out


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


def test_figures_compare_unless_the_measure_or_the_validation_text_changed():
    def changed(name):
        return [
            Change("training.num_steps", 5, 9, Effect.NOTHING),
            Change(name, 1, 2, Effect.NOTHING),
        ]

    assert is_measured_alike([]) and is_measured_alike(changed("optimizer.learning_rate"))
    for name in ("training.best_metric", "training.eval_sentences", "data.validation_text"):
        assert not is_measured_alike(changed(name))
