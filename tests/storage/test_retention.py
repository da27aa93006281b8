"""Old checkpoints go when two good ones stay; what is not good is set aside, never used."""

import os
import re
import shutil

import pytest
from etils import epath
from saved_states import ranked_by, save_steps

from jaxformer.errors import InputError
from jaxformer.storage.manifest import MANIFEST, verify, write_manifest
from jaxformer.storage.retention import (
    clear_unfinished,
    find_verified,
    refused_folders,
    remove,
    remove_old,
    saving_mark,
    set_aside,
)
from jaxformer.storage.steps import list_steps


@pytest.fixture
def directory(tmp_path):
    """Folders with a file and a manifest for the steps 1 to 6; 2 has the best BLEU."""
    for step in range(1, 7):
        folder = tmp_path / str(step)
        (folder / "metrics").mkdir(parents=True)
        (folder / "data").write_bytes(b"data of %d" % step)
        (folder / "metrics" / "metrics").write_text(f'{{"bleu": {10 - abs(step - 2)}}}')
        write_manifest(folder)
    return epath.Path(tmp_path)


def remove_old_ones(directory, verified, *, keep=2, report=None):
    return remove_old(
        directory,
        keep=keep,
        ranking=ranked_by("bleu"),
        verified=set(verified),
        report=report or print,
    )


def set_aside_all(directory, step, times):
    """Refuse the same step again and again; the names that it gets."""
    names = []
    for time in range(times):
        folder = directory / str(step)
        folder.mkdir(exist_ok=True)
        (folder / "data").write_text(f"time {time}")
        names.append(set_aside(folder, print).name)
    return names


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [2, 5, 6]), (2, [2, 5, 6]), (4, [2, 3, 4, 5, 6]), (9, list(range(1, 7)))]
)
def test_the_newest_and_the_best_stay_and_never_fewer_than_two(directory, keep, left):
    gone = remove_old_ones(directory, {5, 6}, keep=keep)
    assert list_steps(directory) == left
    assert gone == sorted(set(range(1, 7)) - set(left))
    assert sorted(path.name for path in directory.iterdir()) == list(map(str, left))


@pytest.mark.parametrize("verified", [(), (6,), (1, 3, 6)])
def test_nothing_goes_before_two_good_ones_stay(directory, verified):
    assert remove_old_ones(directory, verified) == []
    assert list_steps(directory) == [1, 2, 3, 4, 5, 6]


def test_unfinished_ones_go_with_the_old_and_refused_ones_stay(directory):
    for name in ("1.refused", "7.refused", "7.refused.2", "0", "notes", "average_last_2"):
        (directory / name).mkdir()
    assert remove_old_ones(directory, {5, 6}) == [0, 1, 3, 4]
    left = sorted(path.name for path in directory.iterdir())
    kept = ["1.refused", "2", "5", "6", "7.refused", "7.refused.2", "average_last_2", "notes"]
    assert left == kept
    assert [path.name for path in refused_folders(directory)] == [
        "1.refused", "7.refused", "7.refused.2",
    ]  # fmt: skip
    assert refused_folders(directory / "nowhere") == []


def test_what_is_refused_again_gets_another_name(directory):
    assert set_aside_all(directory, 6, 3) == ["6.refused", "6.refused.2", "6.refused.3"]
    os.symlink(directory / "unmounted", directory / "5.refused")
    assert set_aside_all(directory, 5, 1) == ["5.refused.2"]
    contents = [(directory / f"6.refused{n}" / "data").read_text() for n in ("", ".2", ".3")]
    assert contents == ["time 0", "time 1", "time 2"]
    assert list_steps(directory) == [1, 2, 3, 4]


def test_an_object_store_which_cannot_rename_gets_a_copy(directory, monkeypatch):
    files = {name: (directory / "6" / name).read_bytes() for name in ("data", "metrics/metrics")}
    with monkeypatch.context() as patch:
        patch.setattr("jaxformer.storage.retention.is_local", lambda path: False)
        patch.setattr("jaxformer.storage.file_trees.is_local", lambda path: False)
        patch.delattr(os, "rename")
        for step, name in ((6, "6.refused"), (5, "5.refused")):
            assert set_aside(directory / str(step), print) == directory / name
        (directory / "6").mkdir()
        assert set_aside(directory / "6", print) == directory / "6.refused.2"
    assert list_steps(directory) == [1, 2, 3, 4] and not (directory / "6").exists()
    for name, content in files.items():
        assert (directory / "6.refused" / name).read_bytes() == content
    assert verify(directory / "6.refused") == []


def test_what_cannot_be_set_aside_ends_the_start(directory, monkeypatch):
    (directory / "6" / "data").write_bytes(b"date of 6")

    def refuse(path, target):
        raise OSError(30, "Read-only file system", path)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(InputError, match=f"{directory}/6 .*: Read-only file system"):
        find_verified(directory, print)


def test_an_old_one_that_cannot_be_deleted_does_not_save_the_others(directory, monkeypatch):
    rename, said = type(directory).rename, []

    def refuse(path, target):
        if path.name == "3":
            raise OSError(16, "Device or resource busy", str(path))
        return rename(path, target)

    monkeypatch.setattr(type(directory), "rename", refuse)
    assert remove_old_ones(directory, {5, 6}, report=said.append) == [1, 4]
    assert list_steps(directory) == [2, 3, 5, 6]
    (line,) = said
    assert f"{directory}/3 " in line and "Device or resource busy" in line


def test_a_link_goes_its_files_stay_and_one_that_leads_nowhere_stays(directory, tmp_path):
    elsewhere, said = tmp_path.with_name(f"{tmp_path.name}_elsewhere"), []
    elsewhere.mkdir()
    for step in ("1", "2", "3"):  # 2 is the best
        os.rename(tmp_path / step, elsewhere / step)
        (tmp_path / step).symlink_to(elsewhere / step)
    (tmp_path / "0").symlink_to(elsewhere / "unmounted")
    os.rename(tmp_path / "4" / "data", elsewhere / "data")
    (tmp_path / "4" / "data").symlink_to(elsewhere / "data")
    assert remove_old_ones(directory, {5, 6}, report=said.append) == [1, 3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2", "5", "6"]
    assert (elsewhere / "data").read_bytes() == b"data of 4"
    for step in ("1", "3"):
        assert verify(elsewhere / step) == []
        assert any(f"{directory}/{step} " in x and f"{elsewhere}/{step}" in x for x in said)
    assert any(str(elsewhere / "data") in line for line in said) and len(said) == 3


def test_a_damaged_metrics_file_is_told_and_does_not_make_the_best(directory):
    (directory / "4" / "metrics" / "metrics").write_text('{"bleu": 99}')
    said = []
    remove_old_ones(directory, {5, 6}, report=said.append)
    assert list_steps(directory) == [2, 5, 6]
    (line,) = said
    assert re.search(r"/4 .*metrics/metrics: 12 bytes .* 11", line)


def test_the_newest_good_one_is_found_and_the_others_are_set_aside(directory):
    said = []
    assert find_verified(directory, said.append) == 6 and said == []
    (directory / "6" / "data").write_bytes(b"date of 6")
    (directory / "5" / MANIFEST).unlink()
    (directory / "1" / "data").unlink()  # older than the one that is found: nobody looks
    assert find_verified(directory, said.append) == 4
    for line, step, problem in zip(said, "65", ("data: .*crc32", f"{MANIFEST}: "), strict=True):
        expected = (
            rf"REFUSED: .*step {step} in {directory} .*: {problem}.*step 4\b.* {step}\.refused "
        )
        assert re.match(expected, line)
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["1", "2", "3", "4", "5.refused", "6.refused"]


def test_where_none_is_good_nothing_is_touched(directory):
    for step in range(1, 7):
        (directory / str(step) / "data").unlink()
    with pytest.raises(InputError) as refused:
        find_verified(directory, print)
    message = str(refused.value)
    assert f"{directory} " in message and "\n  6: data: missing\n  5: data: missing\n" in message
    assert f"python -m jaxformer verify --workdir={directory.parent} --accept" in message
    assert list_steps(directory) == [1, 2, 3, 4, 5, 6]


def test_no_checkpoints_are_no_error(tmp_path):
    assert find_verified(epath.Path(tmp_path), print) is None
    assert find_verified(epath.Path(tmp_path / "nowhere"), print) is None


def test_leftovers_of_killed_saves_and_deletions_are_cleared(directory):
    for name in ("7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-12", "3.deleting", "8.refused",
                 "average_last_2.orbax-checkpoint-tmp"):  # fmt: skip
        (directory / name / "part").mkdir(parents=True)
    clear_unfinished(directory, print)
    left = {path.name for path in directory.iterdir()} - set("123456")
    assert left == {"8.refused", "average_last_2.orbax-checkpoint-tmp"}


def test_a_save_cut_short_goes_and_a_checkpoint_that_lost_its_manifest_stays(directory):
    for step in (5, 6):
        saving_mark(directory, step).write_text("")
    for step in (4, 6):
        (directory / str(step) / MANIFEST).unlink()
    clear_unfinished(directory, print)
    assert {path.name for path in directory.iterdir()} == set("12345")
    assert list_steps(directory) == [1, 2, 3, 5]


def test_a_killed_deletion_leaves_no_half_checkpoint_under_its_name(tmp_path, monkeypatch):
    save_steps(tmp_path, [None, None])
    directory = epath.Path(tmp_path)

    class Killed(BaseException):
        pass

    def kill(path):
        raise Killed

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(Killed):
        remove(directory / "1", print)
    assert list_steps(directory) == [2]
    assert sorted(path.name for path in directory.iterdir()) == ["1.deleting", "2"]
