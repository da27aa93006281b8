"""What is read: nothing is lost of a pipe. The lines themselves are in data/test_text_files.py."""

import os
import re
import sys
import threading

import pytest

from jaxformer.data.text_files import FilePair
from jaxformer.errors import InputError
from jaxformer.files.inputs import count_lines, read_lines, require_readable, standard_input


def pipe_with(path, text):
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_text(text), daemon=True).start()
    return path


def test_lines_of_a_pipe_are_never_counted(tmp_path):
    pipe = pipe_with(tmp_path / "pipe", "one\ntwo\n")
    with pytest.raises(ValueError, match="is not a regular file"):
        count_lines(pipe)
    require_readable(pipe)
    assert list(read_lines(pipe)) == ["one", "two"]


def test_a_descriptor_is_read_from_where_it_stands(tmp_path):
    (tmp_path / "file").write_text("read\nleft\n")
    with (tmp_path / "file").open("rb", buffering=0) as file:
        file.read(5)
        assert list(read_lines(f"/dev/fd/{file.fileno()}")) == ["left"]
        assert not file.closed


def test_closed_standard_input_is_said(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed.*--input"):
        standard_input()


def test_a_pair_of_pipes_can_be_used_as_often_as_files(tmp_path):
    pair = FilePair(
        pipe_with(tmp_path / "en", "one\ntwo\n"), pipe_with(tmp_path / "fr", "un\ndeux\n")
    )
    assert list(pair.pairs("test")) == list(pair.pairs("test")) == [("one", "un"), ("two", "deux")]
    assert pair.fingerprint("test") == pair.fingerprint("test")


@pytest.mark.parametrize(("source", "target"), [("a\n", "b\nc\nd\n"), ("a\nb\nc\n", "d\n")])
def test_pipes_of_different_lengths_are_counted_to_their_ends(tmp_path, source, target):
    with pytest.raises(InputError) as refused:
        FilePair(pipe_with(tmp_path / "en", source), pipe_with(tmp_path / "fr", target))
    counts = [int(word) for word in re.findall(r" has (\d+)", str(refused.value))]
    assert counts == [source.count("\n"), target.count("\n")]
    assert str(tmp_path / "en") in str(refused.value)


def test_one_pipe_is_no_pair(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=f"{tmp_path}/pipe .* pipe;"):
        FilePair(tmp_path / "pipe", tmp_path / "pipe")
