"""What users and their systems do to the folders of checkpoints: links, litter, other owners."""

import grp
import os
import pwd
import shutil

import jax
import pytest
from saved_states import abstract, assert_same, make_state, ranked_by, save_steps, shapes

from jaxformer.__main__ import main
from jaxformer.errors import InputError
from jaxformer.storage import checkpoint as checkpoint_module, parameters as parameters_module
from jaxformer.storage.checkpoint import (
    Checkpointer,
    list_steps,
    load_params,
    resolve_checkpoint,
    step_metrics,
)
from jaxformer.storage.manifest import READ_BY_NAME, verify


def test_a_leftover_that_cannot_be_deleted_is_told_and_the_start_goes_on(
    open_checkpointer, tmp_path, monkeypatch
):
    save_steps(tmp_path, [None])
    for name in ("0.deleting", "2.orbax-checkpoint-tmp", "3.deleting"):
        (tmp_path / name).mkdir()
    rmtree = shutil.rmtree

    def refuse(path, *rest, **options):
        if os.path.basename(path) in ("0.deleting", "2.orbax-checkpoint-tmp.deleting"):
            raise OSError(16, "Device or resource busy", path)
        rmtree(path, *rest, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    checkpointer = open_checkpointer()
    assert checkpointer.newest_verified() == 1
    first, second = sorted(open_checkpointer.said)
    assert f"{tmp_path}/0.deleting" in first and "Device or resource busy" in first
    assert f"{tmp_path}/2.orbax-checkpoint-tmp" in second
    assert not (tmp_path / "3.deleting").exists()
    checkpointer.save(2, make_state(2), {}, None)
    checkpointer.wait()
    assert list_steps(tmp_path) == [1, 2]


def test_old_checkpoints_that_are_links_go_and_their_files_stay(open_checkpointer, tmp_path):
    """The user moved them to another disk, and linked them back."""
    checkpoints, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    save_steps(checkpoints, [None, None, None])
    elsewhere.mkdir()
    for step in ("1", "2"):
        (checkpoints / step).rename(elsewhere / step)
        (checkpoints / step).symlink_to(elsewhere / step)
    (checkpoints / "0.deleting").symlink_to(elsewhere / "1")  # what an older version left
    for _ in range(2):
        checkpointer = open_checkpointer(directory=checkpoints, keep=2)
    assert not (checkpoints / "0.deleting").is_symlink()
    assert checkpointer.newest_verified() == 3
    for step in (4, 5):
        checkpointer.save(step, make_state(step), {}, None)
    checkpointer.wait()
    assert list_steps(checkpoints) == [4, 5]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["4", "5"]
    for step in ("1", "2"):
        assert verify(elsewhere / step) == []
        lines = [line for line in open_checkpointer.said if f"{checkpoints}/{step} " in line]
        assert len(lines) == 1 and str(elsewhere / step) in lines[0]


def test_a_checkpoint_on_a_disk_that_is_not_there_is_told_and_its_step_repeated(
    open_checkpointer, tmp_path
):
    checkpoints = tmp_path / "checkpoints"
    save_steps(checkpoints, [None, None])
    (checkpoints / "2").rename(tmp_path / "elsewhere")
    (checkpoints / "2").symlink_to(tmp_path / "unmounted")
    checkpointer = open_checkpointer(directory=checkpoints)
    assert checkpointer.newest_verified() == 1
    (line,) = open_checkpointer.said
    assert line.startswith("REFUSED: ") and "step 2 " in line
    assert str(tmp_path / "unmounted") in line
    checkpointer.save(2, make_state(2), {}, None)
    checkpointer.wait()
    assert list_steps(checkpoints) == [1, 2]
    (tmp_path / "elsewhere").rename(tmp_path / "unmounted")  # the disk is back
    assert verify(checkpoints / "2.refused") == []


def test_owners_without_a_name_are_nobodys_business(open_checkpointer, tmp_path, monkeypatch):
    """In a container, or on a shared disk, the owner of a file often has no entry in passwd."""

    def look_up(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", look_up)
    monkeypatch.setattr(grp, "getgrgid", look_up)
    checkpoints = tmp_path / "checkpoints"
    checkpointer = open_checkpointer(directory=checkpoints, keep=2)
    for step in (1, 2, 3, 4):
        checkpointer.save(step, make_state(step, ema=True), {"n": step}, {"bleu": 1.0 * step})
    checkpointer.wait()
    assert list_steps(checkpoints) == [3, 4] and verify(checkpoints / "4") == []
    like = abstract(make_state(4, ema=True))
    assert load_params(checkpoints / "4", shapes(like.params))
    assert checkpointer.newest_verified() == 4
    restored, meta = checkpointer.restore(4, like)
    assert_same(restored, make_state(4, ema=True))
    assert meta == {"n": 4} and step_metrics(checkpoints, 4) == {"bleu": 4.0}
    assert resolve_checkpoint(checkpoints, "best", ranked_by("bleu")) == checkpoints / "4"
    assert main(["verify", f"--workdir={tmp_path}"]) == 0
    assert open_checkpointer.said == []


LITTER = (
    ".DS_Store", "params/.DS_Store", "params/.nfs000000000001", "params/d/Thumbs.db",
    "optimizer/array_metadatas/._process_0", "ema/d/0a1b", "meta/.nfs0001", "metrics/desktop.ini",
    "lost+found/1", "params/manifest.ocdbt.bak", "params/encoder.kernel/.zarray",
)  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of step 1 with every item that there can be."""
    directory = tmp_path_factory.mktemp("saved")
    save_steps(directory, [{"bleu": 1.0}], ema=True)
    return directory


def read_all(directory):
    """Read a checkpoint of `saved` in every way that there is."""
    like = make_state(1, ema=True)
    folder = directory / "1"
    assert_same(load_params(folder, shapes(like.params), ema=False), jax.device_get(like.params))
    assert_same(load_params(folder, abstract(like.params)), like.ema_params)
    with Checkpointer(directory, keep=9, ranking=ranked_by("bleu")) as checkpointer:
        state, meta = checkpointer.restore(1, abstract(like))
    assert_same(state, like)
    assert meta == {"n": 1}


def put(directory, name, content):
    path = directory / "1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_litter_of_desktops_and_file_systems_does_no_harm(saved, tmp_path, capsys):
    directory = shutil.copytree(saved, tmp_path / "checkpoints")
    for name in LITTER:
        put(directory, name, b"litter")
    assert verify(directory / "1") == [] and step_metrics(directory, 1) == {"bleu": 1.0}
    read_all(directory)
    capsys.readouterr()
    assert main(["verify", f"--workdir={tmp_path}"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1: good, ") and ".DS_Store" in line


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("params/checkpoint", b"not msgpack"),
        ("ema/checkpoint", b"not msgpack"),
        ("optimizer/array_metadatas/process_1", b"x"),
        ("params/array_metadatas/process_x", b"{}"),
        ("params/_CHECKPOINT_METADATA", b"[]"),
    ],
)
def test_what_orbax_reads_unasked_is_refused(saved, tmp_path, monkeypatch, name, content):
    directory = shutil.copytree(saved, tmp_path / "checkpoints")
    put(directory, name, content)
    assert verify(directory / "1") == [f"{name}: not in MANIFEST.json"]
    with pytest.raises(InputError, match=f"/1 .*: {name}: "):
        read_all(directory)
    for module in (checkpoint_module, parameters_module):
        monkeypatch.setattr(module, "require_verified", lambda *arguments: None)
    with pytest.raises(Exception) as failed:  # noqa: B017
        read_all(directory)
    assert any("orbax" in str(entry.path) for entry in failed.traceback)


def test_what_is_read_by_name_is_what_a_checkpoint_has(saved):
    """The names in the table are those that orbax writes; `checkpoint` is of its older versions."""
    names = {name for name in READ_BY_NAME if (saved / "1" / name).is_file()}
    rest = {f"{item}/{name}" for item in ("params", "optimizer", "ema")
            for name in ("checkpoint", "_CHECKPOINT_METADATA")}  # fmt: skip
    assert names == set(READ_BY_NAME) - rest
    assert not [path for path in (saved / "1").rglob(".*")]  # none is taken for litter
