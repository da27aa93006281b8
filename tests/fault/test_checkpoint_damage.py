"""Damage to any file of a checkpoint is seen, named, and costs no more than the way back."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
from etils import epath
from saved_states import abstract, make_state, ranked_by, save_steps, shapes
from training_run import (
    call_train_script,
    read_metrics,
    replace_measurement,
    small_config,
    write_config_file,
    write_corpus,
)

from jaxformer.__main__ import main
from jaxformer.decoding.translator import abstract_params
from jaxformer.errors import InputError
from jaxformer.models.transformer import Transformer
from jaxformer.storage.checkpoint import Checkpointer, list_steps, load_params
from jaxformer.storage.manifest import MANIFEST, verify
from jaxformer.storage.retention import find_verified
from jaxformer.storage.workdir import Workdir
from jaxformer.training.loop import train

pytestmark = pytest.mark.fault


def flip(path):
    """One bit, in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path):
    """Half of it is lost."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path):
    """All of it is lost but the name."""
    path.write_bytes(b"")


def remove(path):
    """All of it is lost."""
    path.unlink()


def replace_by_zeros(path):
    """The length is right: what is left of a file that had not reached the disk."""
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = (flip, truncate, empty, remove, replace_by_zeros)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of the steps 1 and 2, with every item that there can be."""
    folder = tmp_path_factory.mktemp("damage") / "checkpoints"
    save_steps(folder, [{"bleu": 1.0}, {"bleu": 2.0}], ema=True)
    return folder


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_file_of_the_newest(saved, tmp_path, damage):
    shutil.copytree(saved, tmp_path / "c")
    directory, newest = epath.Path(tmp_path / "c"), tmp_path / "c" / "2"
    names, said = files(newest), []
    assert len(names) > 20 and {name.partition("/")[0] for name in names} >= {
        MANIFEST, "_CHECKPOINT_METADATA", "params", "ema", "optimizer", "meta", "metrics",
    }  # fmt: skip
    like = shapes(make_state(1).params)
    for name in names:
        content = (newest / name).read_bytes()
        damage(newest / name)
        assert find_verified(directory, said.append) == 1, name
        assert re.match(rf"REFUSED: .*step 2 in {directory} .*{name}: .*step 1\b", said[-1])
        (tmp_path / "c" / "2.refused").rename(newest)
        if name.startswith(("params/", "ema/")) or name == MANIFEST:
            with pytest.raises(InputError, match=f"/2 .*{name}: "):
                load_params(newest, like)
        (newest / name).write_bytes(content)
    assert len(said) == len(names)  # none was silent
    assert find_verified(directory, said.append) == 2


def test_the_state_that_comes_back_instead_is_the_older_one(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "c")
    flip(max((tmp_path / "c" / "2" / "optimizer" / "d").iterdir(), key=lambda p: p.stat().st_size))
    with Checkpointer(
        tmp_path / "c", keep=9, ranking=ranked_by("bleu"), report=print
    ) as checkpointer:
        like = abstract(make_state(1, ema=True))
        found, meta = checkpointer.restore(checkpointer.newest_verified(), like)
    jax.tree.map(np.testing.assert_array_equal, found, make_state(1, ema=True))
    assert meta == {"n": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory, compiled_programs):
    """A run of 16 steps that saved every 4; its configuration file, corpus and workdir."""
    folder = tmp_path_factory.mktemp("run")
    write_corpus(folder / "corpus")
    settings = dict(
        training__num_steps=16, training__log_every=4, training__save_every=4,
        training__eval_every=1000, training__keep_checkpoints=9,
    )  # fmt: skip
    config = small_config(folder / "corpus", folder / "cache", **settings)
    file = write_config_file(folder / "c.py", folder / "corpus", folder / "cache", **settings)
    with pytest.MonkeyPatch.context() as patch:
        replace_measurement(patch, [1.0] * 3)
        assert train(config, folder / "run").exit_status == 0
    return config, file, folder / "run"


def params(workdir, step):
    model = Transformer(Workdir(workdir).load_config().model)
    return load_params(workdir / "checkpoints" / str(step), abstract_params(model))


@pytest.mark.parametrize(
    ("name", "damage"),
    [("params/manifest.ocdbt", flip), ("_CHECKPOINT_METADATA", remove), (MANIFEST, remove)],
)
def test_the_same_command_goes_on_from_the_newest_good_one(
    run, tmp_path, monkeypatch, capsys, name, damage
):
    config, _, whole = run
    shutil.copytree(whole, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints / "16")  # as if it had been killed after step 12
    damage(checkpoints / "12" / name)
    replace_measurement(monkeypatch, [1.0] * 3)
    assert train(config, tmp_path / "run").step == 16
    out = capsys.readouterr().out
    assert re.search(f"REFUSED: .*step 12 .*{name}: ", out)
    assert re.search(f"resuming .*step 8 in {checkpoints}", out)
    assert list_steps(checkpoints) == [4, 8, 12, 16]
    assert [path.name for path in checkpoints.glob("*.refused*")] == ["12.refused"]
    for step in (12, 16):  # bit by bit: parameters of a run that nothing happened to
        jax.tree.map(
            np.testing.assert_array_equal, params(tmp_path / "run", step), params(whole, step)
        )
    steps = [row["step"] for row in read_metrics(tmp_path / "run", "train")]
    assert steps == [4, 8, 12, 16]


def test_litter_of_a_desktop_costs_no_step(run, tmp_path, monkeypatch, capsys):
    config, _, whole = run
    shutil.copytree(whole, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    shutil.rmtree(checkpoints / "16")
    for name in (".DS_Store", "params/.DS_Store", "optimizer/.nfs0001", "lost/and/found"):
        (checkpoints / "12" / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoints / "12" / name).write_text("litter")
    replace_measurement(monkeypatch, [1.0] * 3)
    assert train(config, tmp_path / "run").step == 16
    out = capsys.readouterr().out
    assert re.search(f"resuming .*step 12 in {checkpoints}", out)
    assert "REFUSED" not in out
    jax.tree.map(np.testing.assert_array_equal, params(tmp_path / "run", 16), params(whole, 16))


def test_where_none_is_good_the_run_ends_with_status_2_and_touches_nothing(
    run, tmp_path, monkeypatch, capsys
):
    _, file, whole = run
    shutil.copytree(whole, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    for step in list_steps(checkpoints):
        flip(checkpoints / str(step) / "params" / "_METADATA")
    before = files(checkpoints)
    arguments = [f"--config={file}", f"--workdir={tmp_path / 'run'}"]
    assert call_train_script(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert re.search(f"error: .*{checkpoints} .*\n  16: params/_METADATA: ", error)
    assert "Traceback" not in error
    assert files(checkpoints) == before


@pytest.mark.parametrize("command", ["translate", "evaluate", "average"])
def test_commands_refuse_a_damaged_checkpoint_by_file_name(run, tmp_path, capsys, command):
    _, _, whole = run
    shutil.copytree(whole, tmp_path / "run")
    damaged = max((tmp_path / "run" / "checkpoints" / "16" / "params" / "d").iterdir())
    flip(damaged)
    (tmp_path / "text").write_text("one two\n")
    extra = {
        "translate": ["--checkpoint=16", f"--input={tmp_path / 'text'}"],
        "evaluate": ["--checkpoint=16"],
        "average": ["--last=2"],
    }[command]
    assert main([command, f"--workdir={tmp_path / 'run'}", *extra]) == 2
    captured = capsys.readouterr()
    assert re.search(f"/16 .*: params/d/{damaged.name}: .*crc32", captured.err)
    assert captured.out == ""


def test_verify_lists_them_and_accepts_those_of_an_older_version(run, tmp_path, capsys):
    _, _, whole = run
    shutil.copytree(whole, tmp_path / "run")
    checkpoints, workdir = tmp_path / "run" / "checkpoints", f"--workdir={tmp_path / 'run'}"
    assert main(["verify", workdir]) == 0
    total = json.loads((checkpoints / "4" / MANIFEST).read_text())["total_bytes"]
    assert capsys.readouterr().out.split("\n")[0] == f"4: good, {total:,} bytes"
    flip(checkpoints / "8" / "meta" / "metadata")
    (checkpoints / "16" / MANIFEST).unlink()
    assert main(["verify", workdir]) == 2
    captured = capsys.readouterr()
    assert re.search("^8: DAMAGED: meta/metadata: .*crc32", captured.out, re.M)
    assert f"16: DAMAGED: {MANIFEST}: missing\n" in captured.out
    assert captured.err.startswith("error: 2 of 4 ") and str(checkpoints) in captured.err
    assert main(["verify", workdir, "--accept"]) == 2
    captured = capsys.readouterr()
    assert "16: accepted" in captured.out and "error: 1 of 4" in captured.err
    assert list_steps(checkpoints) == [4, 8, 12, 16] and verify(checkpoints / "16") == []
