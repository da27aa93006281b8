"""config.json: kept whole, compared field by field, refused where it is damaged."""

import json

import pytest
from training_run import change

from jaxformer.config import Config
from jaxformer.errors import InputError
from jaxformer.storage.workdir import Workdir, flatten, write_atomically


@pytest.fixture
def workdir(tmp_path):
    """A workdir that holds the default configuration."""
    folder = Workdir(tmp_path / "a" / "run")
    assert folder.store_config(Config()) == []
    return folder


def test_a_configuration_comes_back_as_it_was(workdir):
    config = change(Config(), model__d_model=64, data__max_length=99, seed=7)
    other = Workdir(workdir.path.parent / "other")
    other.store_config(config)
    assert other.load_config() == config
    assert json.loads(other.config_file.read_text())["model"]["d_model"] == 64
    assert sorted(p.name for p in other.path.iterdir()) == ["config.json"]


def test_paths(workdir):
    names = (workdir.config_file, workdir.checkpoints, workdir.metrics_file, workdir.samples)
    assert [path.relative_to(workdir.path).as_posix() for path in names] == [
        "config.json", "checkpoints", "metrics.jsonl", "samples",
    ]  # fmt: skip


def test_fields_that_may_change_are_stored_and_named(workdir):
    config = change(
        Config(), training__num_steps=5, model__dropout_rate=0.2, data__train="more", seed=4,
        optimizer__learning_rate=2.0,
    )  # fmt: skip
    differences = workdir.check_config(config)
    assert differences == [
        "seed: 0 -> 4",
        "model.dropout_rate: 0.1 -> 0.2",
        "data.train: 'train' -> 'more'",
        "optimizer.learning_rate: 1.0 -> 2.0",
        "training.num_steps: 100000 -> 5",
    ]
    assert workdir.load_config() == Config()
    assert workdir.store_config(config) == differences
    assert workdir.load_config() == config
    assert workdir.store_config(config) == []


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("model__d_model", 256, "model.d_model: 512 -> 256"),
        ("model__norm", "pre", "model.norm: 'post' -> 'pre'"),
        ("tokenizer__joint", False, "tokenizer.joint: True -> False"),
        ("optimizer__ema_decay", 0.9, "optimizer.ema_decay: 0.0 -> 0.9"),
        ("optimizer__name", "muon", "optimizer.name: 'adam' -> 'muon'"),
        ("optimizer__clip_norm", 1.0, "optimizer.clip_norm: 0.0 -> 1.0"),
        ("optimizer__weight_decay", 0.1, "optimizer.weight_decay: 0.0 -> 0.1"),
    ],
)
def test_another_model_is_refused_and_nothing_is_written(workdir, field, value, line):
    with pytest.raises(InputError) as refused:
        workdir.store_config(change(Config(), **{field: value}, training__num_steps=5))
    assert str(refused.value) == (
        f"{workdir.path} holds a run with another model, tokenizer or optimizer:\n  {line}\n"
        "choose another --workdir, or go back to the old values"
    )
    assert workdir.load_config() == Config()


def test_the_value_of_a_switch_may_change_while_it_is_on(tmp_path):
    folder = Workdir(tmp_path)
    folder.store_config(change(Config(), optimizer__clip_norm=1.0))
    assert folder.check_config(change(Config(), optimizer__clip_norm=0.5)) == [
        "optimizer.clip_norm: 1.0 -> 0.5"
    ]


def test_a_folder_without_a_run_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError) as refused:
        Workdir(tmp_path).load_config()
    assert str(refused.value) == (
        f"{tmp_path} is not the workdir of a run: it has no config.json; make one with "
        f"python train.py --workdir={tmp_path}"
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "config.json: not valid JSON: Expecting property name"),
        (b"", "config.json: not valid JSON"),
        (b"[1, 2]", "config.json: expected an object of config sections"),
        (b'{"seed": "\xff"}', "config.json: not UTF-8"),
        (b'{"model": {"d_modl": 4}}', "config.json.model.d_modl does not exist; nearest: "),
        (b'{"model": 5}', "config.json: model must be a section of fields, not 5"),
        (b'{"model": {"d_model": "4"}}', "config.json.model.d_model='4' has the wrong type str"),
        (b'{"model": {"d_model": 30}}', "model.d_model=30 is not divisible by model.num_heads=8"),
    ],
)
def test_a_damaged_configuration_is_refused(workdir, content, words):
    workdir.config_file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        workdir.load_config()
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        "import pathlib; pathlib.Path({0!r}).touch()",
        "!!python/object/apply:os.system ['touch {0}']",
        '{{"seed": "__import__(\'pathlib\').Path({0!r}).touch()"}}',
        "{{\"__import__('pathlib').Path({0!r}).touch()\": 1}}",
    ],
)
def test_a_configuration_is_data_and_executes_nothing(workdir, tmp_path, content):
    marker = tmp_path / "executed"
    workdir.config_file.write_text(content.format(str(marker)))
    with pytest.raises(InputError):
        workdir.load_config()
    assert not marker.exists()


def test_flatten_names_every_field_once():
    flat = flatten(Config())
    assert flat["seed"] == 0 and flat["model.d_model"] == 512 and flat["mesh.data"] == -1
    assert len(flat) == 1 + sum(len(v) for v in Config().to_dict().values() if isinstance(v, dict))


def test_writing_replaces_a_file_whole(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "long old text\n")
    write_atomically(path, "é\u2028\n")
    assert path.read_bytes() == "é\u2028\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
