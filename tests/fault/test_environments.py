"""Every command where the machine lacks what programs take for granted: a name, a home, a terminal.

Each world is one process that trains and then calls each command of `command_table`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_table import EXAMPLES
from training_run import number_pairs, write_config_file

pytestmark = pytest.mark.fault

TESTS = Path(__file__).parent.parent
ACCENTS = ("é", "\u2028", "😀")

# What is taken away inside the process, and what its environment holds instead.
WORLDS = {
    "unknown uid": (["passwd"], {}),
    "no HOME": (["passwd"], {"HOME": None}),
    "read-only HOME": (["root"], {"HOME": "{read_only}"}),
    "C locale": ([], {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}),
    "nothing but ASCII": ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "closed standard input": (["stdin"], {}),
    "closed standard error": (["stderr"], {}),
    "standard error on a full disk": ([], {}),
}


def places_in(folder, world, small_run):
    """The examples' files in a folder of a world, with names that are not ASCII where it can."""
    folder.mkdir()
    run, new_run = ("run", "new") if world == "nothing but ASCII" else ("rün", "neu é")
    shutil.copytree(small_run.workdir, folder / run)
    sources, references = zip(*number_pairs(3, 5), strict=True)
    sources = [f"{line} {accent}" for line, accent in zip(sources, ACCENTS, strict=True)]
    for name, lines in (("lines", sources), ("references", references)):
        (folder / name).write_bytes("".join(f"{line}\n" for line in lines).encode())
    config = write_config_file(
        folder / "small.py", small_run.corpus, "", training__num_steps=4, training__eval_every=4,
        training__save_every=2, training__log_every=2, data__cache_dir="",
    )  # fmt: skip
    return {
        "workdir": str(folder / run), "folder": str(folder), "config": str(config),
        "lines": str(folder / "lines"), "references": str(folder / "references"),
        "new_run": str(folder / new_run),
    }  # fmt: skip


def give_away(folder):
    """Let a user own the files who is in no list of users; only root can."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 54321, 54321)


@pytest.fixture(scope="module")
def outcomes(small_run, compiled_programs, tmp_path_factory):
    """How each command ended in a world, by its name; each world is entered once."""
    found = {}

    def of(world):
        if world not in found:
            base = tmp_path_factory.mktemp("world")
            found[world] = enter(world, base, places_in(base / "files", world, small_run))
        return found[world]

    return of


def enter(world, base, places):
    taken, variables = WORLDS[world]
    if world == "unknown uid":
        give_away(base / "files")
    (base / "read_only").mkdir()
    (base / "read_only").chmod(0o555)
    (base / "temporary").mkdir()
    (base / "places.json").write_text(json.dumps(places), "utf-8")
    environment = {k: v for k, v in os.environ.items() if k not in ("JAXFORMER_CACHE", "XLA_FLAGS")}
    environment |= {
        "JAX_PLATFORMS": "cpu", "TMPDIR": str(base / "temporary"),
        "XLA_FLAGS": os.environ["XLA_FLAGS"],
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
    }  # fmt: skip
    for name, value in variables.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value.format(read_only=base / "read_only")
    with open("/dev/full" if "full disk" in world else base / "errors", "w") as errors:
        subprocess.run(
            [sys.executable, TESTS / "call_every_command.py", base / "places.json",
             base / "results.json", *taken],
            env=environment, stdout=(base / "out").open("w"), stderr=errors, timeout=600,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert (base / "results.json").is_file(), (base / "errors").read_text("utf-8")[-2000:]
    return json.loads((base / "results.json").read_text("utf-8"))


@pytest.mark.parametrize("command", ["train.py", *EXAMPLES])
@pytest.mark.parametrize("world", WORLDS)
def test_a_command_in_a_poor_world(world, command, outcomes):
    assert outcomes(world)[command] == 0
