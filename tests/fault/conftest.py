"""What the fault tests share: a run in processes of its own, which they kill, signal and starve."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"

# Runs train.py in a process in which something was replaced before.
PATCHED = """
{patch}
import sys
from absl import app
sys.argv[0] = "train.py"
import train
app.run(train.main, flags_parser=train.parse_flags)
"""


@pytest.fixture(scope="session")
def soak():
    """The module benchmarks/soak.py."""
    spec = importlib.util.spec_from_file_location("soak_benchmark", SCRIPT)
    module = sys.modules["soak_benchmark"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_run(soak, tmp_path_factory):
    """A run of 40 steps in processes of its own, and the digest of its parameters in the end."""
    folder = tmp_path_factory.mktemp("tiny_run")
    runs = soak.Soak(folder, kills=4, seed=0)
    runs.start(folder / "whole").finish(0)
    runs.digest = soak.digest(folder / "whole")
    assert (runs.num_steps, len(runs.digest)) == (40, 64)
    return runs


@pytest.fixture
def patched():
    """The program of `Soak.start` that replaces something first."""
    return lambda patch: ("-c", PATCHED.format(patch=patch))
