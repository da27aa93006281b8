"""Folders are listed, measured, copied and deleted, and nothing behind a link is touched."""

import os
import shutil

import pytest
from root_powers import without_root_powers

from jaxformer.storage.file_trees import (
    copy_tree,
    delete_tree,
    file_names,
    is_link,
    is_local,
    make_folder,
    tree_bytes,
)


@pytest.fixture
def tree(tmp_path):
    """A folder of two files, 7 bytes."""
    (tmp_path / "tree" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "tree" / "a").write_bytes(b"aaaa")
    (tmp_path / "tree" / "deep" / "er" / "b").write_bytes(b"bbb")
    return tmp_path / "tree"


def test_files_are_listed_measured_and_copied(tree, tmp_path):
    assert sorted(file_names(tree)) == ["a", "deep/er/b"]
    assert tree_bytes(tree) == 7
    copy_tree(tree, tmp_path / "copy")
    assert sorted(file_names(tmp_path / "copy")) == ["a", "deep/er/b"]
    assert (tmp_path / "copy" / "deep" / "er" / "b").read_bytes() == b"bbb"
    with pytest.raises(OSError):
        list(file_names(tmp_path / "nowhere"))
    assert list(file_names(tmp_path / "nowhere", skip_unreadable=True)) == []
    assert tree_bytes(tmp_path / "nowhere") == 0


def test_a_tree_a_file_and_nothing_are_deleted(tree, tmp_path):
    said = []
    delete_tree(tree, said.append)
    delete_tree(tree, said.append)
    (tmp_path / "file").write_text("")
    delete_tree(tmp_path / "file", said.append)
    assert os.listdir(tmp_path) == [] and said == []


def test_a_link_goes_and_what_it_leads_to_stays(tree, tmp_path):
    said = []
    (tmp_path / "link").symlink_to(tree)
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    assert is_link(tmp_path / "link") and is_link(tmp_path / "lost") and not is_link(tree)
    assert tree_bytes(tmp_path / "link") == 0
    for name in ("link", "lost"):
        delete_tree(tmp_path / name, said.append)
    assert os.listdir(tmp_path) == ["tree"] and sorted(file_names(tree)) == ["a", "deep/er/b"]
    for line, name, target in zip(said, ("link", "lost"), ("tree", "nowhere"), strict=True):
        assert str(tmp_path / name) in line and str(tmp_path / target) in line


def test_links_inside_a_tree_lead_nowhere_else(tree, tmp_path):
    said = []
    shutil.move(tree / "deep", tmp_path / "elsewhere")
    (tree / "deep").symlink_to(tmp_path / "elsewhere")
    (tree / "same").symlink_to("a")
    (tree / "loop").symlink_to(".")
    delete_tree(tree, said.append)
    assert os.listdir(tmp_path) == ["elsewhere"]
    assert (tmp_path / "elsewhere" / "er" / "b").read_bytes() == b"bbb"
    (line,) = said
    assert str(tree / "deep") in line and str(tmp_path / "elsewhere") in line


def test_a_folder_that_may_not_be_changed_is_an_error(tmp_path):
    make_folder(tmp_path / "new" / "one")
    make_folder(tmp_path / "new" / "one")
    (tmp_path / "new" / "one").chmod(0o555)
    with pytest.raises(PermissionError) as refused, without_root_powers():
        make_folder(tmp_path / "new" / "one")
    assert refused.value.filename == str(tmp_path / "new" / "one")


def test_object_stores_are_told_by_their_names(tmp_path):
    assert is_local(tmp_path) and not is_local("gs://bucket/run")
    assert not is_link("gs://bucket/run")
