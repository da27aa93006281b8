"""The command line is checked before absl reads it."""

import pytest

from jaxformer.commands.config_overrides import check_arguments
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
        (["--config"], "--config has no value; write --config=..."),
        (["--config.seed", "x"], "--config.seed=x: not int"),
        (["-config.sed=3"], "--config.sed does not exist; nearest: --config.seed"),
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
    assert str(refused.value) == (
        f"--config={tmp_path}/c.py: no such file; there is: {tmp_path}/a.py, {tmp_path}/b.py"
    )
