"""config.json: kept whole, refused where it is damaged."""

import json

import pytest
from training_run import change

from jaxformer.config import Config
from jaxformer.errors import InputError
from jaxformer.storage.workdir import Workdir, write_atomically


@pytest.fixture
def workdir(tmp_path):
    """A workdir that holds the default configuration."""
    folder = Workdir(tmp_path / "a" / "run")
    folder.store_config(Config())
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


def test_the_newest_configuration_is_what_is_stored(workdir):
    config = change(Config(), training__num_steps=5, optimizer__learning_rate=2.0)
    workdir.store_config(config)
    assert workdir.load_config() == config
    assert [p.name for p in workdir.path.iterdir()] == ["config.json"]


def test_a_folder_without_a_run_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError) as refused:
        Workdir(tmp_path).load_config()
    message = str(refused.value)
    assert message.startswith(f"{tmp_path} ") and "config.json" in message
    assert message.endswith(f"python train.py --workdir={tmp_path}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", ("config.json: ", "JSON", "Expecting property name")),
        (b"", ("config.json: ", "JSON")),
        (b"[1, 2]", ("config.json: ", "object")),
        (b'{"seed": "\xff"}', ("config.json: ", "UTF-8")),
        (b'{"model": {"d_modl": 4}}', ("config.json.model.d_modl ", "config.json.model.d_model")),
        (b'{"model": 5}', ("config.json: model ", "section", " 5")),
        (b'{"model": {"d_model": "4"}}', ("config.json.model.d_model='4'", "str", "int")),
        (b'{"model": {"d_model": 30}}', ("model.d_model=30", "model.num_heads=8", "nearest: ")),
    ],
)
def test_a_damaged_configuration_is_refused(workdir, content, words):
    workdir.config_file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        workdir.load_config()
    for word in words:
        assert word in str(refused.value)


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


def test_writing_replaces_a_file_whole(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "long old text\n")
    write_atomically(path, "é\u2028\n")
    assert path.read_bytes() == "é\u2028\n".encode()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
