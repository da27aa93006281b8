"""Every command that writes, into everything a path can be; every command that reads, likewise.

The rows come from the commands' own parsers (`command_table`), the columns are the functions below.
"""

import contextlib
import gzip
import io
import os
import resource
import shutil
import stat
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
from command_table import EXAMPLES, INPUTS, OUTPUTS, WITH_WORKDIR, arguments, parsers
from root_powers import without_root_powers
from training_run import number_pairs, write_config_file

from jaxformer.__main__ import COMMANDS, main

TINY = {"model__d_model": 8, "model__num_heads": 1, "model__d_ff": 8, "training__eval_beam_size": 1}


@pytest.fixture(scope="module")
def places(small_run, tmp_path_factory):
    """What the examples of the commands name."""
    folder = tmp_path_factory.mktemp("matrix")
    sources, references = zip(*number_pairs(3, 5), strict=True)
    for name, lines in (("lines", sources), ("references", references)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    shutil.copytree(small_run.workdir, folder / "run")  # `average` writes into it
    config = write_config_file(folder / "small.py", small_run.corpus, folder / "cache", **TINY)
    return {
        "workdir": folder / "run", "folder": folder, "config": config,
        "lines": folder / "lines", "references": folder / "references",
    }  # fmt: skip


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """The backend of the tests is left as it is."""
    monkeypatch.setattr("jaxformer.runtime.backend.configure_backend", lambda: None)


def call(words):
    """Exit status of `python -m jaxformer WORDS` in this process."""
    try:
        return main([str(word) for word in words])
    except SystemExit as ended:
        return ended.code


def suffix_of(command):
    return ".png" if command.startswith("plot") else ".txt"


def test_every_command_has_an_example():
    assert set(EXAMPLES) == {command for name in COMMANDS for command in parsers(name)}
    assert len(OUTPUTS) >= 9 and len(INPUTS) >= 4 and len(WITH_WORKDIR) >= 6


# --- what is written --------------------------------------------------------------------------


class Case(NamedTuple):
    """One cell: where a command writes, and how it writes there."""

    path: Path
    write: object  # () -> exit status
    capture: object  # of pytest: what is printed


def content_of(reader):
    """Reads a pipe to its end in the background; returns the function that gives what came."""
    found = []
    thread = threading.Thread(target=lambda: found.append(Path(reader).read_bytes()))
    thread.start()

    def join():
        thread.join(60)
        return found[0]

    return join


def regular_file(case):
    assert case.write() == 0
    assert case.path.stat().st_size > 0
    assert os.listdir(case.path.parent) == [case.path.name]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(case.path.stat().st_mode) == 0o666 & ~mask


def existing_file(case):
    case.path.write_text("old")
    case.path.chmod(0o640)
    neighbour = case.path.with_name(f"{case.path.name}.partial")
    neighbour.write_text("mine")
    assert case.write() == 0
    assert case.path.read_bytes() != b"old" and stat.S_IMODE(case.path.stat().st_mode) == 0o640
    assert neighbour.read_text() == "mine" and len(os.listdir(case.path.parent)) == 2


def symlink(case):
    target = case.path.with_name("target")
    target.write_text("old")
    case.path.symlink_to(target)
    assert case.write() == 0
    assert case.path.is_symlink() and target.read_bytes() not in (b"", b"old")
    assert len(os.listdir(case.path.parent)) == 2


def dangling_symlink(case):
    target = case.path.with_name("target")
    case.path.symlink_to(target)
    assert case.write() == 0
    assert case.path.is_symlink() and target.stat().st_size > 0


def device(case):
    try:
        os.mknod(case.path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null, but ours
        case.path.write_text("")
    except OSError:  # not root, or no devices here
        case.path.unlink(missing_ok=True)
        case.path.symlink_to(os.devnull)
    assert case.write() == 0
    assert stat.S_ISCHR(case.path.stat().st_mode)
    assert os.listdir(case.path.parent) == [case.path.name]


def fifo(case):
    os.mkfifo(case.path)
    content = content_of(case.path)
    assert case.write() == 0
    assert content() and stat.S_ISFIFO(case.path.stat().st_mode)


def standard_output(case):
    case.path.symlink_to("/dev/stdout")
    case.capture.readouterr()
    assert case.write() == 0
    assert case.capture.readouterrbinary().out and os.readlink(case.path) == "/dev/stdout"


def closed_pipe(case):
    reader, writer = os.pipe()
    os.close(reader)
    case.path.symlink_to(f"/dev/fd/{writer}")
    assert case.write() == 141
    os.close(writer)
    assert "error" not in case.capture.readouterr().err


def full_device(case):
    case.path.symlink_to("/dev/full")
    assert case.write() == 2
    assert "No space left" in case.capture.readouterr().err


def full_disk(case):
    case.path.write_text("old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    printed, errors = io.StringIO(), io.StringIO()  # pytest's own files would be full too
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
        try:
            status = case.write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = errors.getvalue()
    assert status == 2 and str(case.path) in error and "File too large" in error
    assert case.path.read_text() == "old" and os.listdir(case.path.parent) == [case.path.name]


def read_only_folder(case):
    case.path.parent.chmod(0o555)
    with without_root_powers():
        status = case.write()
    error = case.capture.readouterr().err
    assert status == 2 and str(case.path.parent) in error and os.listdir(case.path.parent) == []


def file_in_a_read_only_folder(case):
    case.path.write_text("old")
    case.path.parent.chmod(0o555)
    with without_root_powers():
        assert case.write() == 0
    assert case.path.read_bytes() != b"old"


def folder(case):
    case.path.mkdir()
    assert case.write() == 2
    assert str(case.path) in case.capture.readouterr().err and os.listdir(case.path) == []


def missing_folder(case):
    case.path.parent.rmdir()
    assert case.write() == 2
    assert str(case.path.parent) in case.capture.readouterr().err


DESTINATIONS = (
    regular_file, existing_file, symlink, dangling_symlink, device, fifo, standard_output,
    closed_pipe, full_device, full_disk, read_only_folder, file_in_a_read_only_folder, folder,
    missing_folder,
)  # fmt: skip


@pytest.mark.parametrize("destination", DESTINATIONS, ids=lambda d: d.__name__)
@pytest.mark.parametrize(("command", "flag"), OUTPUTS)
def test_what_a_command_writes_to(command, flag, destination, places, tmp_path, capfdbinary):
    (tmp_path / "out").mkdir()
    path = tmp_path / "out" / f"result{suffix_of(command)}"
    words = arguments(command, places, **{flag.lstrip("-"): path})
    destination(Case(path, lambda: call(words), Capture(capfdbinary)))


class Capture:
    """`capfdbinary` that also gives text."""

    def __init__(self, capture):
        self.readouterrbinary = capture.readouterr

    def readouterr(self):
        found = self.readouterrbinary()
        return type(found)(found.out.decode("utf-8", "replace"), found.err.decode())


@pytest.mark.parametrize("command", EXAMPLES)
def test_standard_output_on_a_full_disk(command, places, capfd, monkeypatch):
    """What is printed is a result too: a command that cannot print it says so with status 2."""
    full = os.open("/dev/full", os.O_WRONLY)
    before = os.dup(1)
    os.dup2(full, 1)
    try:
        with open(1, "w", closefd=False) as stream:
            monkeypatch.setattr("sys.stdout", stream)
            status = call(arguments(command, places))
    finally:
        os.dup2(before, 1)
        os.close(before)
        os.close(full)
    assert (status, capfd.readouterr().err.count("standard output cannot be written")) == (2, 1)


# --- what is read -----------------------------------------------------------------------------

LINES = "one two\nthree four\nfive six seven\n"


def read_regular(path, monkeypatch):
    path.write_text(LINES)
    return path


def read_fifo(path, monkeypatch):
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_text(LINES)).start()
    return path


def through_pipe(text):
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader


def read_descriptor(path, monkeypatch):
    return f"/dev/fd/{through_pipe(LINES)}"


def read_standard_input(path, monkeypatch):
    reader, before = through_pipe(LINES), os.dup(0)
    os.dup2(reader, 0)
    os.close(reader)
    monkeypatch.callback(lambda: (os.dup2(before, 0), os.close(before)))
    return "/dev/stdin"


def read_link(path, monkeypatch):
    path.with_name("target").write_text(LINES)
    path.symlink_to("target")
    return path


def read_without_final_newline(path, monkeypatch):
    path.write_text(LINES.rstrip("\n"))
    return path


def read_compressed(path, monkeypatch):
    path = path.with_name("lines.gz")
    path.write_bytes(gzip.compress(LINES.encode()))
    return path


READABLE = (
    read_regular, read_fifo, read_descriptor, read_standard_input, read_link,
    read_without_final_newline, read_compressed,
)  # fmt: skip


@pytest.fixture
def cleanup():
    """`callback(f)` calls `f` when the test has ended."""
    with contextlib.ExitStack() as stack:
        yield stack


def result_of(command, words, capfd):
    """What a command gives for its input, whatever it was read from."""
    capfd.readouterr()
    assert call(words) == 0
    out = capfd.readouterr().out
    if command == "evaluate":
        assert '"sentences": 3' in out
        return [line for line in out.split("\n") if "second" not in line]
    return out.partition(":")[2] if command == "visualize" else out


@pytest.mark.parametrize("kind", READABLE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("command", "flag"), INPUTS)
def test_what_a_command_reads(command, flag, kind, places, tmp_path, cleanup, capfd):
    (tmp_path / "usual").write_text(LINES)
    name = flag.lstrip("-")
    usual = result_of(command, arguments(command, places, **{name: tmp_path / "usual"}), capfd)
    path = kind(tmp_path / "input", cleanup)
    assert usual and result_of(command, arguments(command, places, **{name: path}), capfd) == usual


def is_missing(path):
    return [str(path)]


def is_a_folder(path):
    path.mkdir()
    return [str(path)]


def may_not_be_read(path):
    path.write_text(LINES)
    path.chmod(0)
    return [str(path), "Permission denied"]


def is_not_utf8(path):
    path.write_bytes(b"one\nt\xffwo\nthree\n")
    return [str(path), "line 2", "0xFF"]


def is_damaged_gzip(path):
    path.write_bytes(gzip.compress(LINES.encode())[:-9])
    return [str(path), "gzip"]


UNREADABLE = (is_missing, is_a_folder, may_not_be_read, is_not_utf8, is_damaged_gzip)


@pytest.mark.parametrize("kind", UNREADABLE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(("command", "flag"), INPUTS)
def test_what_a_command_cannot_read(command, flag, kind, places, tmp_path, capfd):
    path = tmp_path / ("input.gz" if kind is is_damaged_gzip else "input")
    words = kind(path)
    with without_root_powers():
        assert call(arguments(command, places, **{flag.lstrip("-"): path})) == 2
    error = capfd.readouterr().err
    for word in words:
        assert word in error


@pytest.mark.parametrize(("command", "flag"), INPUTS)
def test_an_empty_input(command, flag, places, tmp_path, capfd):
    (tmp_path / "empty").touch()
    status = call(arguments(command, places, **{flag.lstrip("-"): tmp_path / "empty"}))
    out, error = capfd.readouterr()
    if (command, flag) == ("translate", "--input"):
        assert (status, out) == (0, "")
    else:
        assert status == 2 and str(tmp_path / "empty") in error


# --- the workdir ------------------------------------------------------------------------------


def no_folder(path):
    return path


def an_empty_folder(path):
    path.mkdir()
    return path


def a_file(path):
    path.touch()
    return path


def a_folder_without_checkpoints(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


def an_unreadable_configuration(path):
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "config.json").chmod(0)
    return path


NO_WORKDIR = (
    no_folder, an_empty_folder, a_file, a_folder_without_checkpoints, an_unreadable_configuration
)  # fmt: skip


@pytest.mark.parametrize("kind", NO_WORKDIR, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("command", WITH_WORKDIR)
def test_what_is_no_workdir(command, kind, places, tmp_path, capfd):
    path = kind(tmp_path / "workdir")
    with without_root_powers():
        assert call(arguments(command, places, workdir=path)) == 2
    assert str(path) in capfd.readouterr().err


@pytest.mark.parametrize("command", EXAMPLES)
def test_an_empty_value_is_never_taken_for_none(command, places, capfd):
    for flag in EXAMPLES[command]:
        name = flag.partition("=")[0]
        if "=" in flag:
            assert call(arguments(command, places, **{name.lstrip("-"): ""})) == 2
            assert name in capfd.readouterr().err
