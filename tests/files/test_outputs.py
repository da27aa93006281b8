"""A file that is written: whole or not there, and nothing but a file is ever replaced.

What each command does with each kind of file is in commands/test_file_matrix.py.
"""

import os
import stat
import threading

import pytest
from root_powers import without_root_powers

from jaxformer.errors import InputError
from jaxformer.files.outputs import check_output, open_output


def write(path, text="new\n"):
    with open_output(str(path)) as file:
        file.write(text)


def test_it_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "out.txt"
    path.write_text("old\n")
    with open_output(str(path)) as file:
        file.write("né\n")
        file.flush()
        assert path.read_text() == "old\n"
    assert path.read_bytes() == "né\n".encode()
    assert os.listdir(tmp_path) == ["out.txt"]


def test_bytes(tmp_path):
    with open_output(tmp_path / "out.png", binary=True) as file:
        file.write(b"\x89PNG\r\n")
    assert (tmp_path / "out.png").read_bytes() == b"\x89PNG\r\n"


def test_two_writers_of_one_name_do_not_mix(tmp_path):
    path = tmp_path / "out.txt"
    with open_output(path) as one:
        with open_output(path) as other:
            one.write("one\n" * 9000)
            other.write("other\n")
        assert path.read_text() == "other\n"
    assert path.read_text() == "one\n" * 9000 and os.listdir(tmp_path) == ["out.txt"]


def test_a_file_of_another_program_is_left_alone(tmp_path):
    (tmp_path / "out.txt.partial").write_text("mine")
    write(tmp_path / "out.txt")
    assert (tmp_path / "out.txt.partial").read_text() == "mine"


def test_a_name_as_long_as_a_name_may_be(tmp_path):
    write(tmp_path / ("n" * 255))
    assert os.listdir(tmp_path) == ["n" * 255]


def test_a_pipe_gets_what_is_written_when_it_is_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read, first = [], threading.Event()

    def reader():
        with (tmp_path / "pipe").open() as pipe:
            read.append(pipe.readline())
            first.set()
            read.append(pipe.read())

    thread = threading.Thread(target=reader)
    thread.start()
    with open_output(tmp_path / "pipe") as file:
        file.write("one\n")
        file.flush()
        assert first.wait(10)
        file.write("two\n")
    thread.join()
    assert read == ["one\n", "two\n"] and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_descriptor_is_written_where_it_stands(tmp_path):
    """`>>file` with --output=/dev/stdout adds to the file; opening it again would empty it."""
    with (tmp_path / "log").open("w+") as log:
        log.write("before\n")
        log.flush()
        write(f"/dev/fd/{log.fileno()}")
        log.write("after\n")
    assert (tmp_path / "log").read_text() == "before\nnew\nafter\n"


def test_a_descriptor_that_is_not_open_is_refused():
    with pytest.raises(InputError, match="--output=/dev/fd/987654"):
        write("/dev/fd/987654")


def test_what_was_written_before_an_interrupt_is_kept_and_named(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), open_output(tmp_path / "out.txt") as file:
        file.write("hours of work\n")
        raise KeyboardInterrupt
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("out.txt.") and kept.read_text() == "hours of work\n"
    assert str(kept) in capsys.readouterr().err


def test_nothing_is_kept_of_nothing(tmp_path, capsys):
    with pytest.raises(KeyError), open_output(tmp_path / "out.txt"):
        raise KeyError("input")
    assert os.listdir(tmp_path) == [] and capsys.readouterr().err == ""


def test_errors_of_reading_are_not_the_outputs(tmp_path):
    with pytest.raises(OSError, match="No space left on another disk"), open_output(tmp_path / "o"):
        raise OSError(28, "No space left on another disk")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_shows_at_once_and_only_once():
    with pytest.raises(InputError, match="--hlo=/dev/full: .*No space"):  # noqa: SIM117
        with open_output("/dev/full", flag="--hlo") as file:
            file.write("x" * 100_000)


def test_a_single_file_that_is_mounted_cannot_be_replaced_but_written(tmp_path, monkeypatch):
    path = tmp_path / "out.txt"
    path.write_text("old and longer\n")

    def busy(source, target):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr("os.replace", busy)
    write(path)
    assert path.read_text() == "new\n" and os.listdir(tmp_path) == ["out.txt"]


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path):
    with pytest.raises(InputError, match=f"--output={tmp_path}/ .*folder.*/translations.txt"):
        check_output(f"{tmp_path}/")
    with pytest.raises(InputError, match=f"--hlo=.*folder {tmp_path}/nowhere;"):
        check_output(str(tmp_path / "nowhere" / "out"), flag="--hlo")
    (tmp_path / "file").touch(0o444)
    with without_root_powers(), pytest.raises(InputError, match="--output=.*/file .*writable"):
        check_output(str(tmp_path / "file"))
    tmp_path.chmod(0o555)
    with without_root_powers():
        for name in ("new", "file"):
            with pytest.raises(InputError, match=f"--output={tmp_path}/{name}: .*writable"):
                check_output(str(tmp_path / name))
    tmp_path.chmod(0o755)
