"""The file of --output: whole or not there, and nothing but a file is ever replaced."""

import errno
import os
import stat
import threading

import pytest

from jaxformer.commands.output_file import open_output
from jaxformer.errors import InputError


def write(path, text="new\n"):
    with open_output(str(path)) as file:
        file.write(text)


def test_it_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old\n")
    with open_output(str(path)) as file:
        file.write("né\n")
        assert path.read_text() == "old\n"
    assert path.read_bytes() == "né\n".encode()
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "file").write_text("old\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "new\n"


def test_a_device_and_a_pipe_are_written_in_place(tmp_path):
    (tmp_path / "null").symlink_to(os.devnull)
    write(tmp_path / "null")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode) and (tmp_path / "null").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join()
    assert read == ["new\n"] and stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_folder_is_refused(tmp_path):
    for name in (str(tmp_path), f"{tmp_path}/"):
        with pytest.raises(
            InputError, match="is a folder; name a file, such as .*translations.txt"
        ):
            write(name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_only_errors_of_writing_are_the_outputs(tmp_path, number):
    expected = InputError if number == errno.ENOSPC else OSError
    with pytest.raises(expected), open_output(str(tmp_path / "out.txt")):
        raise OSError(number, os.strerror(number))
    assert not (tmp_path / "out.txt").exists()
