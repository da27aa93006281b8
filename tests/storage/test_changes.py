"""Which differences to a checkpoint are refused, which are allowed by name, and which only told."""

from pathlib import Path

import pytest
from training_run import change

from jaxformer.config import Config, field_types
from jaxformer.errors import InputError
from jaxformer.storage.changes import (
    EFFECTS,
    SPIKES,
    SWITCHES,
    TEXTS,
    Change,
    Effect,
    check_changes,
    check_names,
    config_changes,
    effect_of,
    flatten,
)

RUN = Path("runs/a")


def test_flatten_names_every_field_once():
    flat = flatten(Config())
    assert flat["seed"] == 0 and flat["model.d_model"] == 512 and flat["mesh.data"] == -1
    assert len(flat) == len(field_types())
    assert len(flat) == 4 + sum(len(v) for v in Config().to_dict().values() if isinstance(v, dict))


def test_every_name_in_the_tables_exists():
    known = {*field_types(), *TEXTS}
    sections = {name.partition(".")[0] for name in known} | {"hardware", "versions"}
    assert set(EFFECTS) <= known | sections
    assert {*SWITCHES, *SPIKES} <= known


def test_what_nobody_has_thought_about_is_refused():
    assert effect_of("training.a_new_field") is Effect.TRAINING
    assert effect_of("a_new_section.field") is Effect.TRAINING
    assert effect_of("model.a_new_field") is Effect.STRUCTURE


EFFECT_OF_FIELDS = [
    ("model__d_model", 256, Effect.STRUCTURE),
    ("model__norm", "pre", Effect.STRUCTURE),
    ("tokenizer__joint", False, Effect.STRUCTURE),
    ("optimizer__name", "muon", Effect.STRUCTURE),
    ("optimizer__ema_decay", 0.9, Effect.STRUCTURE),
    ("optimizer__clip_norm", 1.0, Effect.STRUCTURE),
    ("optimizer__weight_decay", 0.1, Effect.STRUCTURE),
    ("seed", 4, Effect.TRAINING),
    ("model__dropout_rate", 0.2, Effect.TRAINING),
    ("model__dtype", "bfloat16", Effect.TRAINING),
    ("tokenizer__sampling_rate", 0.1, Effect.TRAINING),
    ("optimizer__learning_rate", 2.0, Effect.TRAINING),
    ("optimizer__accumulation_steps", 2, Effect.TRAINING),
    ("data__tokens_per_batch", 8192, Effect.TRAINING),
    ("data__max_length", 128, Effect.TRAINING),
    ("training__label_smoothing", 0.2, Effect.TRAINING),
    ("training__spike_factor", 2.0, Effect.TRAINING),
    ("model__remat", True, Effect.NUMERICS),
    ("training__loss_chunk_tokens", 64, Effect.NUMERICS),
    ("training__num_steps", 5, Effect.NOTHING),
    ("training__save_every", 5, Effect.NOTHING),
    ("data__train", "more", Effect.NOTHING),
    ("decoding__alpha", 1.0, Effect.NOTHING),
    ("mesh__fsdp", 2, Effect.NOTHING),
]


@pytest.mark.parametrize(("name", "value", "effect"), EFFECT_OF_FIELDS)
def test_the_effect_of_a_field(name, value, effect):
    field = name.replace("__", ".")
    changes = config_changes(Config(), change(Config(), **{name: value}))
    assert changes == [Change(field, flatten(Config())[field], value, effect)]


@pytest.mark.parametrize("name", ["clip_norm", "weight_decay", "ema_decay"])
def test_the_value_of_a_switch_may_change_while_it_is_on(name):
    one, other = (change(Config(), **{f"optimizer__{name}": value}) for value in (0.5, 0.9))
    (found,) = config_changes(one, other)
    assert (str(found), found.effect) == (f"optimizer.{name}: 0.5 -> 0.9", Effect.TRAINING)


def test_the_length_of_a_run_belongs_to_the_schedule_only_where_it_is_cosine():
    one, other = (
        change(Config(), optimizer__schedule="cosine", training__num_steps=n) for n in (5, 9)
    )
    (found,) = config_changes(one, other)
    assert found == Change("training.num_steps", 5, 9, Effect.TRAINING)


def test_intervals_belong_to_training_only_where_spikes_are_looked_for():
    one, other = (
        change(Config(), training__spike_factor=2.0, training__log_every=n) for n in (5, 9)
    )
    assert [found.effect for found in config_changes(one, other)] == [Effect.TRAINING]


def changes_of(**changes):
    return config_changes(Config(), change(Config(), **changes))


def test_a_changed_structure_is_refused_whatever_is_allowed():
    changes = changes_of(model__d_model=256, optimizer__ema_decay=0.9, seed=3)
    for step in (None, 60):
        with pytest.raises(InputError) as refused:
            check_changes(changes, ["model", "optimizer", "seed"], RUN, step)
        first, *changed, last = str(refused.value).split("\n")
        assert first.startswith("runs/a ")
        assert changed == ["  model.d_model: 512 -> 256", "  optimizer.ema_decay: 0.0 -> 0.9"]
        assert "another --workdir" in last and "old values" in last


def test_changed_training_is_refused_with_the_flag_that_allows_it():
    changes = changes_of(optimizer__learning_rate=2.0, data__max_length=99, training__num_steps=5)
    with pytest.raises(InputError) as refused:
        check_changes(changes, [], RUN, 12_000)
    first, *changed, last = str(refused.value).split("\n")
    assert first.startswith("runs/a ") and "step 12,000" in first
    assert changed == ["  data.max_length: 256 -> 99", "  optimizer.learning_rate: 1.0 -> 2.0"]
    assert "old values" in last and "another --workdir" in last
    assert last.endswith("--allow_changes=data.max_length,optimizer.learning_rate")
    with pytest.raises(InputError, match=r"--allow_changes=optimizer.learning_rate$"):
        check_changes(changes, ["data"], RUN, 12_000)


@pytest.mark.parametrize(
    "allowed", [["data", "optimizer"], ["data.max_length", "optimizer.learning_rate", "seed"]]
)
def test_allowed_changes_pass(allowed):
    changes = changes_of(optimizer__learning_rate=2.0, data__max_length=99)
    check_changes(changes, allowed, RUN, 12_000)


def test_what_trains_the_same_needs_no_flag():
    changes = changes_of(training__num_steps=5, model__remat=True, decoding__beam_size=1)
    assert len(changes) == 3
    check_changes(changes, [], RUN, 60)


def test_without_a_checkpoint_only_the_structure_counts():
    check_changes(changes_of(optimizer__learning_rate=2.0, seed=3), [], RUN, None)


def test_names_that_do_not_exist_are_refused():
    check_names(["seed", "data", "optimizer.learning_rate", *TEXTS])
    with pytest.raises(InputError) as refused:
        check_names(["data", "optimizer.learning_rat"])
    message = str(refused.value)
    assert message.startswith("--allow_changes=optimizer.learning_rat: ")
    assert message.endswith("nearest: optimizer.learning_rate")
