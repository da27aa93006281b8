"""Which names stand for an open descriptor, and which files can be read twice."""

import os

import pytest

from jaxformer.files.descriptors import descriptor_of, is_regular


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("/dev/stdin", 0), ("/dev/stdout", 1), ("/dev/stderr", 2), ("/dev/fd/63", 63),
        ("/proc/self/fd/7", 7), ("/dev/../dev/fd/5", 5), ("/dev/null", None), ("/dev/full", None),
        ("/proc/1/fd/1", None), ("out.txt", None), ("/nowhere/fd/3", None),
    ],
)  # fmt: skip
def test_names(name, number):
    assert descriptor_of(name) == number


def test_links_are_followed_and_a_circle_ends(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("/dev/stdout")
    assert descriptor_of(tmp_path / "one") == 1
    assert descriptor_of(f"/proc/{os.getpid()}/fd/4") == 4
    (tmp_path / "circle").symlink_to("circle")
    assert descriptor_of(tmp_path / "circle") is None and not is_regular(tmp_path / "circle")


def test_only_files_are_regular(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    assert is_regular(tmp_path / "file") and is_regular(tmp_path / "link")
    for name in (tmp_path, tmp_path / "pipe", tmp_path / "nothing", "/dev/null"):
        assert not is_regular(name)
    with (tmp_path / "file").open() as file:  # its place in the file is shared with others
        assert not is_regular(f"/dev/fd/{file.fileno()}")
