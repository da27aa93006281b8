"""`python -m jaxformer`: what it offers, what it imports, how it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.__main__ import COMMANDS, main

ROOT = Path(__file__).parent.parent.parent


def test_help_names_every_command_and_loads_no_jax():
    code = (
        "import sys; from jaxformer.__main__ import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'jax', 'orbax', 'sacrebleu'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert ended.returncode == 0 and ended.stdout.endswith("[]\n")
    shown = " ".join(ended.stdout.split())
    for name, summary in COMMANDS.items():
        assert f" {name} {summary}" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_its_flags(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and ("--config" if command == "plan" else "--workdir") in out
    assert COMMANDS[command] in " ".join(out.split())


def test_a_mistake_ends_the_process_with_status_2_and_one_line(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "jaxformer", "translate", f"--workdir={tmp_path}"],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {tmp_path} ") and "config.json" in ended.stderr
    assert ended.stderr.count("\n") == 1
