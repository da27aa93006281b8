"""The command line is checked before absl reads it."""

import pytest

from jaxformer.commands.config_overrides import check_arguments, parse_value
from jaxformer.errors import InputError


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config=FILE", "--config.model.d_model=8", "-config.seed=3"],
        ["--config", "FILE", "--config.seed", "3", "--workdir", "config.x"],
        ["--workdir=x", "--", "--config.nothing=3"],
        ["--config.data.root=--config.x"],
    ],
)
def test_what_is_right_passes(tmp_path, arguments):
    file = tmp_path / "own.py"
    file.write_text("")
    check_arguments([argument.replace("FILE", str(file)) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config"], "--config=..."),
        (["--config.seed", "x"], "--config.seed=x: not int"),
        (["-config.sed=3"], "nearest: --config.seed"),
        (["--workdir=x", "--config.model.dmodel", "3"], "nearest: --config.model.d_model"),
    ],
)
def test_what_is_wrong_is_named(arguments, message):
    with pytest.raises(InputError) as refused:
        check_arguments(arguments)
    assert message in str(refused.value)


def test_a_missing_file_is_answered_with_those_that_are_there(tmp_path):
    for name in ("b.py", "a.py", "notes.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(InputError) as refused:
        check_arguments([f"--config={tmp_path / 'c.py'}"])
    message = str(refused.value)
    assert message.startswith(f"--config={tmp_path}/c.py: ")
    assert message.endswith(f": {tmp_path}/a.py, {tmp_path}/b.py")


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("seed", "12", 12),
        ("training.num_steps", "100_000", 100_000),
        ("optimizer.learning_rate", "5e-4", 5e-4),
        ("model.remat", "True", True),
        ("model.remat", "false", False),
        ("data.root", "a=b", "a=b"),
        ("data.root", "", ""),
    ],
)
def test_parse_value(path, text, value):
    found = parse_value(path, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("model.d_modl", "5", ["--config.model.d_modl ", "nearest: --config.model.d_model"]),
        ("model.d_model", "5.5", ["--config.model.d_model=5.5: ", "int", " 1000"]),
        ("optimizer.b1", "big", ["--config.optimizer.b1=big: ", "float", " 0.1"]),
        ("model.remat", "yes", ["--config.model.remat=yes: ", "true or false"]),
        ("model", "5", ["--config.model ", "section", "--config.model."]),
        ("model.vocab_size", "5", ["--config.model.vocab_size", "--config.tokenizer.vocab_size"]),
        (
            "model.target_vocab_size",
            "5",
            ["--config.model.target_vocab_size", "--config.tokenizer.joint=false"],
        ),
        ("", "5", ["--config. does not exist"]),
    ],
)
def test_what_parse_value_refuses(path, text, message):
    with pytest.raises(InputError) as refused:
        parse_value(path, text)
    for word in message:
        assert word in str(refused.value)
