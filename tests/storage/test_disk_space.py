"""Room for a checkpoint is asked for before it is written."""

import re
import shutil
from collections import namedtuple

import jax
import jax.numpy as jnp
import pytest
from saved_states import abstract, make_state, ranked_by, save_steps

from jaxformer.errors import InputError
from jaxformer.storage.checkpoint import Checkpointer
from jaxformer.storage.disk_space import check_room, checkpoint_bytes, free_bytes, require_space

Usage = namedtuple("Usage", "total used free")


def test_the_bytes_follow_from_the_shapes(tmp_path):
    tree = {"a": jax.ShapeDtypeStruct((1000, 1000), jnp.float32), "b": jnp.zeros(50, jnp.bfloat16)}
    assert checkpoint_bytes(tree) == int((4_000_000 + 100) * 1.02) + 2**20
    state = make_state(1)
    assert checkpoint_bytes(abstract(state)) == checkpoint_bytes(state)
    save_steps(tmp_path, [{"bleu": 1.0}], ema=True)
    used = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert used < checkpoint_bytes(make_state(1, ema=True))


def test_random_weights_need_less_than_is_asked_for(tmp_path):
    weights = jax.random.normal(jax.random.key(0), (1024, 1024))
    state = make_state(1)._replace(params={"kernel": weights}, opt_state=())
    with Checkpointer(tmp_path, keep=2, ranking=ranked_by("bleu")) as checkpointer:
        checkpointer.save(1, state, {}, None)
    used = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert 0.85 * weights.nbytes < used < checkpoint_bytes(state)


def test_too_little_is_refused_with_path_need_and_rest(tmp_path, monkeypatch):
    assert free_bytes(tmp_path / "not" / "yet") == pytest.approx(
        shutil.disk_usage(tmp_path).free, rel=0.05
    )
    assert free_bytes("gs://bucket/run") is None
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 5_000_000))
    require_space(tmp_path, 5_000_000)
    require_space("gs://bucket/run", 10**18)
    with pytest.raises(InputError) as refused:
        require_space(tmp_path / "checkpoints", 5_000_001)
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}/checkpoints: ") and "--workdir" in message
    assert "5,000,001 bytes" in message and "5,000,000 " in message


def test_room_for_some_but_not_for_all_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 5_000_000))
    said = []
    check_room(tmp_path, 1_000_000, new=5, report=said.append)
    assert said == []
    check_room(tmp_path, 1_000_000, new=6, report=said.append)
    (line,) = said
    assert line.startswith(f"{tmp_path} ") and "training.keep_checkpoints" in line
    assert re.search(r"\b5\b.* 1,000,000 bytes.*\b6\b", line)
    with pytest.raises(InputError, match="6,000,000 bytes.* 5,000,000 "):
        check_room(tmp_path, 6_000_000, new=1, report=said.append)
    assert len(said) == 1


def test_what_refused_checkpoints_hold_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 5_000_000))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(bytes(7777))
    directory = tmp_path / "checkpoints"
    for name, size in (("20", 999), ("20.refused", 1500), ("20.refused.2", 500), ("20.x", 9)):
        (directory / name).mkdir(parents=True)
        (directory / name / "file").write_bytes(bytes(size))
    (directory / "30.refused").symlink_to(tmp_path / "elsewhere")  # of another disk
    said = []
    check_room(directory, 1_000_000, new=9, report=said.append)
    with pytest.raises(InputError) as refused:
        require_space(directory, 6_000_000)
    for message in (said[0], str(refused.value)):
        assert "2,000 bytes" in message and str(directory) in message
        assert "20.refused" in message and "20.refused.2" in message
        assert "999" not in message and "30.refused" not in message


def test_a_disk_that_does_not_tell_is_tried(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert free_bytes(tmp_path) is None
    require_space(tmp_path, 10**18)
