"""Old checkpoints go when two good ones stay; what is not good is set aside, never used."""

import pytest
from etils import epath
from saved_states import save_steps

from jaxformer.errors import InputError
from jaxformer.storage.manifest import MANIFEST, write_manifest
from jaxformer.storage.retention import (
    clear_unfinished,
    find_verified,
    remove,
    remove_old,
    saving_mark,
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
        directory, keep=keep, best_metric="bleu", verified=set(verified), report=report or print
    )


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


def test_refused_and_unfinished_ones_go_with_the_old(directory):
    for name in ("7.refused", "0", "notes", "average_last_2", "8.refused.bak"):
        (directory / name).mkdir()
    assert remove_old_ones(directory, {5, 6}) == [0, 1, 3, 4]
    left = sorted(path.name for path in directory.iterdir())
    assert left == ["2", "5", "6", "8.refused.bak", "average_last_2", "notes"]


def test_a_damaged_metrics_file_is_told_and_does_not_make_the_best(directory):
    (directory / "4" / "metrics" / "metrics").write_text('{"bleu": 99}')
    said = []
    remove_old_ones(directory, {5, 6}, report=said.append)
    assert list_steps(directory) == [2, 5, 6]
    (line,) = said
    assert "metrics/metrics: 12 bytes instead of 11" in line and "left out" in line


def test_the_newest_good_one_is_found_and_the_others_are_set_aside(directory):
    said = []
    assert find_verified(directory, said.append) == 6 and said == []
    (directory / "6" / "data").write_bytes(b"date of 6")
    (directory / "5" / MANIFEST).unlink()
    (directory / "1" / "data").unlink()  # older than the one that is found: nobody looks
    assert find_verified(directory, said.append) == 4
    assert said == [
        f"REFUSED: the checkpoint of step 6 in {directory} is damaged or unfinished: data: another "
        "crc32 than when it was saved; going back to the one of step 4",
        f"REFUSED: the checkpoint of step 5 in {directory} is damaged or unfinished: "
        f"{MANIFEST}: missing; going back to the one of step 4",
    ]
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["1", "2", "3", "4", "5.refused", "6.refused"]


def test_where_none_is_good_nothing_is_touched(directory):
    for step in range(1, 7):
        (directory / str(step) / "data").unlink()
    with pytest.raises(InputError) as refused:
        find_verified(directory, print)
    message = str(refused.value)
    assert message.startswith(f"no checkpoint in {directory} is good:\n  6: data: missing\n  5: ")
    assert f"python -m jaxformer verify --workdir={directory.parent} --accept" in message
    assert list_steps(directory) == [1, 2, 3, 4, 5, 6]


def test_no_checkpoints_are_no_error(tmp_path):
    assert find_verified(epath.Path(tmp_path), print) is None
    assert find_verified(epath.Path(tmp_path / "nowhere"), print) is None


def test_leftovers_of_killed_saves_and_deletions_are_cleared(directory):
    for name in ("7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-12", "3.deleting", "8.refused",
                 "average_last_2.orbax-checkpoint-tmp"):  # fmt: skip
        (directory / name / "part").mkdir(parents=True)
    clear_unfinished(directory)
    left = {path.name for path in directory.iterdir()} - set("123456")
    assert left == {"8.refused", "average_last_2.orbax-checkpoint-tmp"}


def test_a_save_cut_short_goes_and_a_checkpoint_that_lost_its_manifest_stays(directory):
    for step in (5, 6):
        saving_mark(directory, step).write_text("")
    for step in (4, 6):
        (directory / str(step) / MANIFEST).unlink()
    clear_unfinished(directory)
    assert {path.name for path in directory.iterdir()} == set("12345")
    assert list_steps(directory) == [1, 2, 3, 5]


def test_a_killed_deletion_leaves_no_half_checkpoint_under_its_name(tmp_path, monkeypatch):
    save_steps(tmp_path, [None, None])
    directory = epath.Path(tmp_path)

    class Killed(BaseException):
        pass

    def kill(path, missing_ok=False):
        if path.exists():
            raise Killed

    monkeypatch.setattr(type(directory), "rmtree", kill)
    with pytest.raises(Killed):
        remove(directory / "1")
    assert list_steps(directory) == [2]
    assert sorted(path.name for path in directory.iterdir()) == ["1.deleting", "2"]
