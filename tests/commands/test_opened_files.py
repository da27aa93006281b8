"""Commands and pictures open what a user names through `files/`, and in no other way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jaxformer"
OPENING = {"open", "write_text", "write_bytes", "read_text", "read_bytes", "run_path", "savefig"}
# What is no file of a user's, or is opened by a library under our eyes.
ALLOWED = {
    ("commands/config_files.py", "run_path"),  # the configuration file
    ("commands/translate.py", "open"),  # os.devnull, where another process writes
    ("visualization/curves.py", "read_bytes"),  # metrics.jsonl
    ("visualization/figures.py", "savefig"),  # into an open file
    ("visualization/page.py", "read_bytes"),  # our own assets
}


def openings(path):
    """Names of the calls in a module that open a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in OPENING and ast.unparse(node.func) != "StoredRun.open":
                yield name


@pytest.mark.parametrize("folder", ["commands", "visualization"])
def test_only_files_opens_files(folder):
    found = {
        (f"{folder}/{path.name}", name)
        for path in (PACKAGE / folder).glob("*.py")
        for name in openings(path)
    }
    assert found == {entry for entry in ALLOWED if entry[0].startswith(folder)}


def test_expanduser_stands_in_one_place():
    for path in PACKAGE.rglob("*.py"):
        if path.name != "user_paths.py":
            text = path.read_text("utf-8")
            assert "expanduser" not in text and "Path.home" not in text, path
