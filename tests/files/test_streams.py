"""A log that cannot be written ends nothing; a result that cannot be written is an error."""

import contextlib
import io
import os
import subprocess
import sys

import pytest

from jaxformer.errors import InputError
from jaxformer.files.streams import log_streams, result_streams


@contextlib.contextmanager
def full(name):
    """A stream of `sys` on a full disk."""
    stream, before = open("/dev/full", "w"), getattr(sys, name)
    setattr(sys, name, stream)
    try:
        yield
    finally:
        setattr(sys, name, before)
        with contextlib.suppress(OSError):
            stream.close()


def test_a_full_log_is_told_once_and_ends_nothing(capsys):
    with full("stdout"), log_streams():
        for _ in range(3):
            print("a line", flush=True)
    assert capsys.readouterr().err.count("No space left") == 1


def test_a_full_result_is_an_error():
    refused = pytest.raises(InputError, match="standard output.*No space left")
    with full("stdout"), refused, result_streams():
        print("a line", flush=True)


def test_letters_that_the_encoding_lacks_are_escaped(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with log_streams():
        print("für", flush=True)
    assert stream.buffer.getvalue() == b"f\\xfcr\n"


@pytest.mark.parametrize("streams", [log_streams, result_streams])
def test_warnings_never_fail(streams):
    with full("stderr"), streams():
        print("a warning", file=sys.stderr, flush=True)


def test_streams_that_were_closed_before_the_start(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with log_streams():
        print("a line", flush=True)
        print("a warning", file=sys.stderr)
        assert not sys.stdout.isatty() and not sys.stderr.isatty()
    with pytest.raises(InputError, match="closed"), result_streams():
        sys.stdout.write("a line")
    assert sys.stdout is None and sys.stderr is None


def test_the_inner_ones_change_nothing():
    with log_streams():
        outer = sys.stdout
        with log_streams(), result_streams():
            assert sys.stdout is outer


CODE = """
import sys
from jaxformer.files.streams import log_streams
with log_streams():
    for number in range(9999):
        print(number)
print("the end", file=sys.stderr)
"""


def test_python_ends_quietly_after_its_reader_went_away():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-c", CODE], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(writer)
    assert ended.returncode == 0
    assert ended.stderr.count("Broken pipe") == 1 and ended.stderr.endswith("the end\n")
