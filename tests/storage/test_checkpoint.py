"""Training states on disk: what comes back, what is kept, and how a save may fail."""

import json
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from root_powers import without_root_powers
from saved_states import abstract, assert_same, make_state, ranked_by, save_steps, shapes

from jaxformer.errors import InputError
from jaxformer.storage import checkpoint as checkpoint_module
from jaxformer.storage.checkpoint import (
    Checkpointer,
    list_steps,
    load_params,
    ranked_steps,
    resolve_checkpoint,
    step_metrics,
)
from jaxformer.storage.manifest import MANIFEST, verify
from jaxformer.training.state import TrainState


@pytest.mark.parametrize("ema", [False, True])
def test_a_state_comes_back_as_it_was(open_checkpointer, tmp_path, ema):
    checkpointer = open_checkpointer()
    assert checkpointer.latest_step is None and checkpointer.newest_verified() is None
    state = make_state(7, ema=ema)
    meta = {"selection": {"best": 1.5, "best_step": 3, "waiting": 0}, "é": None}
    checkpointer.save(7, state, meta, None)
    checkpointer.wait()
    assert checkpointer.latest_step == checkpointer.newest_verified() == 7
    restored, found = checkpointer.restore(7, abstract(state))
    assert found == meta
    assert isinstance(restored, TrainState) and (restored.ema_params is not None) == ema
    assert_same(restored, state)
    assert verify(tmp_path / "7") == []
    listed = json.loads((tmp_path / "7" / MANIFEST).read_text())["files"]
    parts = {name.partition("/")[0] for name in listed if "/" in name}
    assert parts == {"meta", "optimizer", "params"} | ({"ema"} if ema else set())
    assert open_checkpointer.said == []


def test_saving_copies_before_it_returns(open_checkpointer, tmp_path):
    checkpointer = open_checkpointer()
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)
    state, meta = make_state(3), {"list": [1]}
    expected = jax.device_get(jax.tree.map(jnp.copy, state.params))
    checkpointer.save(3, state, meta, None)
    meta["list"].append(2)
    step, rest = state.step, state._replace(step=None)
    for _ in range(5):
        rest = update(rest)
    checkpointer.wait()
    like = abstract(make_state(3))
    assert_same(load_params(tmp_path / "3", shapes(like.params)), expected)
    assert checkpointer.restore(3, like)[1] == {"list": [1]} and int(step) == 3


def test_saving_returns_before_the_manifest_is_written(open_checkpointer, tmp_path, monkeypatch):
    go_on = threading.Event()

    def write_slowly(folder):
        assert go_on.wait(60)
        return write_manifest(folder)

    write_manifest = checkpoint_module.write_manifest
    monkeypatch.setattr(checkpoint_module, "write_manifest", write_slowly)
    checkpointer = open_checkpointer()
    checkpointer.save(1, make_state(1), {}, None)
    assert checkpointer.latest_step is None
    go_on.set()
    checkpointer.wait()
    assert checkpointer.latest_step == 1


BLEU = [{"bleu": value, "loss": value} for value in (3.0, 9.0, 1.0, 2.0)]


@pytest.mark.parametrize(
    ("best_metric", "kept", "ranked"), [("bleu", [2, 4, 5], [2, 4]), ("loss", [3, 4, 5], [3, 4])]
)
def test_the_newest_and_the_best_are_kept(tmp_path, best_metric, kept, ranked):
    save_steps(tmp_path, [*BLEU, None], keep=2, best_metric=best_metric)
    assert list_steps(tmp_path) == kept
    assert ranked_steps(tmp_path, ranked_by(best_metric)) == ranked
    assert step_metrics(tmp_path, 4) == BLEU[3] and step_metrics(tmp_path, 5) == {}
    best = resolve_checkpoint(tmp_path, "best", ranked_by(best_metric))
    assert best == tmp_path / str(ranked[0])


def test_of_equal_checkpoints_the_later_is_the_best_and_two_of_the_newest_stay(tmp_path):
    metrics = [{"bleu": 5.0}, {"bleu": 5.0}, {"bleu": 1.0}, {"bleu": 1.0}, None]
    save_steps(tmp_path, metrics, keep=1)
    assert list_steps(tmp_path) == [2, 4, 5]
    assert ranked_steps(tmp_path, ranked_by("bleu")) == [2, 4]


def test_a_damaged_checkpoint_gives_way_to_the_newest_good_one(open_checkpointer, tmp_path):
    save_steps(tmp_path, [None, None, None])
    (tmp_path / "2" / "meta" / "metadata").write_text("{}")
    (tmp_path / "3" / "_CHECKPOINT_METADATA").unlink()
    checkpointer = open_checkpointer()
    with pytest.raises(InputError, match="/3 .*_CHECKPOINT_METADATA: missing"):
        checkpointer.restore(3, abstract(make_state(3)))
    assert checkpointer.newest_verified() == 1
    first, second = open_checkpointer.said
    assert re.search(r"REFUSED: .*step 3 .*_CHECKPOINT_METADATA: missing.*step 1\b", first)
    assert re.search(r"REFUSED: .*step 2 .*meta/metadata: 2 bytes.*step 1\b", second)
    assert_same(checkpointer.restore(1, abstract(make_state(1)))[0], make_state(1))
    for step in (2, 3):  # what they held is made again, in their place
        checkpointer.save(step, make_state(step), {}, None)
    checkpointer.wait()
    assert list_steps(tmp_path) == [1, 2, 3] and verify(tmp_path / "3") == []
    kept = sorted(path.name for path in tmp_path.glob("*.refused*"))
    assert kept == ["2.refused", "3.refused"]  # to delete them is for the user to decide


def test_another_model_is_refused_on_the_way_back(open_checkpointer, tmp_path):
    save_steps(tmp_path, [None])
    checkpointer = open_checkpointer()
    like = abstract(make_state(1))
    wide = jax.ShapeDtypeStruct((2, 4), jnp.float32)
    params = like.params | {"encoder": {"kernel": wide}}
    with pytest.raises(InputError, match=r"encoder/kernel: \(2, 3\) instead of \(2, 4\)"):
        checkpointer.restore(1, like._replace(params=params))


def test_a_step_is_not_saved_twice(open_checkpointer):
    checkpointer = open_checkpointer()
    checkpointer.save(1, make_state(1), {}, None)
    with pytest.raises(RuntimeError, match="checkpoint in .*/1"):
        checkpointer.save(1, make_state(1), {}, None)


def fail_to_write(monkeypatch, steps):
    """Let the manifests of some steps fail, as on a full disk."""
    write_manifest = checkpoint_module.write_manifest

    def write(folder):
        if int(folder.name) in steps:
            raise OSError(28, "No space left on device")
        return write_manifest(folder)

    monkeypatch.setattr(checkpoint_module, "write_manifest", write)


def test_a_failed_save_is_reported_and_the_next_one_tries_again(
    open_checkpointer, tmp_path, monkeypatch
):
    fail_to_write(monkeypatch, {2, 3, 5, 6})
    checkpointer = open_checkpointer()
    for step in range(1, 8):
        checkpointer.save(step, make_state(step), {}, None)
    checkpointer.wait()
    assert list_steps(tmp_path) == [1, 4, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "4", "7"]
    lines = open_checkpointer.said
    assert len(lines) == 4
    assert re.search(r"step 2 .*NOT saved: .*No space left on device.* 1\b", lines[0])
    assert re.search(r"step 6 .*NOT saved: .*No space left on device.* 4\b", lines[3])


def test_the_third_failure_in_a_row_ends_the_run(open_checkpointer, monkeypatch):
    fail_to_write(monkeypatch, {2, 3, 4})
    checkpointer = open_checkpointer()
    for step in range(1, 5):
        checkpointer.save(step, make_state(step), {}, None)
    with pytest.raises(InputError, match=r"step 4 .*NOT saved: .*\b3\b"):
        checkpointer.save(5, make_state(5), {}, None)


def test_a_last_save_that_failed_is_an_error(open_checkpointer, monkeypatch):
    fail_to_write(monkeypatch, {1})
    checkpointer = open_checkpointer()
    with pytest.raises(InputError, match="step 1 .*NOT saved"), checkpointer:
        checkpointer.save(1, make_state(1), {}, None)
    assert "no good one" in open_checkpointer.said[0]


def test_leaving_by_an_exception_finishes_the_save_and_keeps_the_exception(
    open_checkpointer, tmp_path, monkeypatch
):
    with pytest.raises(FloatingPointError), open_checkpointer() as checkpointer:
        checkpointer.save(1, make_state(1), {}, None)
        raise FloatingPointError
    assert list_steps(tmp_path) == [1] and verify(tmp_path / "1") == []
    fail_to_write(monkeypatch, {2})
    with pytest.raises(FloatingPointError), open_checkpointer() as checkpointer:
        checkpointer.save(2, make_state(2), {}, None)
        raise FloatingPointError
    assert re.search("step 2 .*NOT saved", open_checkpointer.said[-1])


def test_without_room_nothing_is_written_and_the_run_goes_on(
    open_checkpointer, tmp_path, monkeypatch
):
    free = [10**9]
    monkeypatch.setattr("jaxformer.storage.disk_space.free_bytes", lambda path: free[-1])
    checkpointer = open_checkpointer()
    checkpointer.save(1, make_state(1), {}, None)
    checkpointer.wait()
    free.append(1000)
    checkpointer.save(2, make_state(2), {}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1"]
    (line,) = open_checkpointer.said
    assert re.search(rf"step 2 .*NOT saved: {tmp_path}: .* 1,\d{{3}},\d{{3}} bytes.* 1,000 ", line)
    assert re.search(r"last good one .*\b1\b", line)
    with pytest.raises(InputError, match=r"[\d,]+ bytes.* 1,000 .*--workdir"):
        checkpointer.check_space(abstract(make_state(1)))
    free.append(10**9)
    checkpointer.save(3, make_state(3), {}, None)
    checkpointer.wait()
    assert list_steps(tmp_path) == [1, 3]


def test_leftovers_of_a_kill_are_cleared_and_do_not_stop_the_next_start(tmp_path):
    save_steps(tmp_path, [None])
    (tmp_path / "2.orbax-checkpoint-tmp" / "params.orbax-checkpoint-tmp").mkdir(parents=True)
    (tmp_path / "0.deleting").mkdir()
    with Checkpointer(tmp_path, keep=9, ranking=ranked_by("bleu")) as checkpointer:
        assert [path.name for path in tmp_path.iterdir()] == ["1"]
        assert checkpointer.newest_verified() == 1
        checkpointer.save(2, make_state(2), {}, None)
    assert list_steps(tmp_path) == [1, 2]


def test_a_directory_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file/checkpoints .*written: "):
        Checkpointer(tmp_path / "file" / "checkpoints", keep=2, ranking=ranked_by("bleu"))
    (tmp_path / "checkpoints").mkdir(0o555)
    refused = pytest.raises(InputError, match="/checkpoints .*written: .*Permission denied")
    with refused, without_root_powers():
        Checkpointer(tmp_path / "checkpoints", keep=2, ranking=ranked_by("bleu"))


def test_a_state_comes_back_on_another_mesh(tmp_path):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    params = {"kernel": jax.device_put(jnp.arange(64.0).reshape(16, 4), spread)}
    state = make_state(1)._replace(params=params, opt_state=(jax.tree.map(jnp.copy, params),))
    with Checkpointer(tmp_path, keep=2, ranking=ranked_by("bleu")) as checkpointer:
        checkpointer.save(1, state, {}, None)
        checkpointer.wait()
        single = jax.sharding.SingleDeviceSharding(jax.devices()[3])
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=single), state
        )
        restored, _ = checkpointer.restore(checkpointer.newest_verified(), like)
    assert restored.params["kernel"].sharding == single
    assert_same(jax.device_get(restored), jax.device_get(state))
    np.testing.assert_array_equal(restored.params["kernel"].ravel(), np.arange(64.0))
