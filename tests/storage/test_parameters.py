"""Parameters of a checkpoint: what comes back, and what is refused."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_states import abstract, assert_same, make_state, save_steps, shapes

from jaxformer.errors import InputError
from jaxformer.storage.disk_space import checkpoint_bytes
from jaxformer.storage.manifest import MANIFEST, verify
from jaxformer.storage.parameters import load_params, read_meta, save_params


def test_load_params_prefers_the_moving_average(tmp_path):
    save_steps(tmp_path, [None], ema=True)
    state = make_state(1, ema=True)
    like = shapes(state.params)
    assert_same(load_params(tmp_path / "1", like), jax.device_get(state.ema_params))
    plain = load_params(tmp_path / "1", like, ema=False)
    assert_same(plain, jax.device_get(state.params))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(plain))
    placed = load_params(tmp_path / "1", abstract(state.params), ema=False)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(placed))


def test_load_params_lists_every_difference(tmp_path):
    save_steps(tmp_path, [None])
    other = {
        "decoder": {"kernel": jax.ShapeDtypeStruct((1,), jnp.float32)},
        "token_embedding": {"embedding": jax.ShapeDtypeStruct((5, 2), jnp.bfloat16)},
    }
    with pytest.raises(InputError) as refused:
        load_params(tmp_path / "1", other)
    first, *differences = str(refused.value).split("\n")
    assert first.startswith(f"{tmp_path}/1/params ")
    assert differences == [
        "  decoder/kernel: missing",
        "  encoder/kernel: not in the model",
        "  token_embedding/embedding: (4, 2) instead of (5, 2)",
    ]


def test_a_long_list_of_differences_is_cut_and_counted(tmp_path):
    save_steps(tmp_path, [None])
    like = shapes(make_state(1).params)
    like |= {f"layer_{i:02}": jax.ShapeDtypeStruct((1,), jnp.float32) for i in range(25)}
    with pytest.raises(InputError) as refused:
        load_params(tmp_path / "1", like)
    lines = str(refused.value).split("\n")
    assert len(lines) == 22 and lines[-1] == "  and 5 more"


def test_only_what_is_read_has_to_be_good(tmp_path):
    save_steps(tmp_path, [None], ema=True)
    state = make_state(1, ema=True)
    shutil.rmtree(tmp_path / "1" / "optimizer")
    assert_same(load_params(tmp_path / "1", shapes(state.params)), jax.device_get(state.ema_params))
    shutil.rmtree(tmp_path / "1" / "ema")  # the plain ones must not take its place
    with pytest.raises(InputError, match="/1 .*: ema/.*: missing"):
        load_params(tmp_path / "1", shapes(state.params))


def test_parameters_alone_are_verified_too(tmp_path, monkeypatch):
    params = make_state(4).params
    meta = {"identity": {"é": 1}}
    save_params(tmp_path / "average_last_2", params, {"meta/metadata": json.dumps(meta)})
    assert verify(tmp_path / "average_last_2") == []
    assert read_meta(tmp_path / "average_last_2") == meta
    assert_same(load_params(tmp_path / "average_last_2", shapes(params)), jax.device_get(params))
    (tmp_path / "average_last_2" / "meta" / "metadata").write_text("{}")
    with pytest.raises(InputError, match="/average_last_2 .*: meta/metadata: 2 bytes"):
        read_meta(tmp_path / "average_last_2")
    (tmp_path / "average_last_2" / MANIFEST).unlink()
    with pytest.raises(InputError, match="MANIFEST.json: missing"):
        load_params(tmp_path / "average_last_2", shapes(params))
    needed = checkpoint_bytes(params)
    monkeypatch.setattr("jaxformer.storage.disk_space.free_bytes", lambda path: needed - 1)
    with pytest.raises(InputError, match=f" {needed:,} bytes.* {needed - 1:,} "):
        save_params(tmp_path / "average_last_3", params)
    assert not (tmp_path / "average_last_3").exists()


def test_a_folder_that_is_there_is_not_overwritten(tmp_path):
    params = make_state(4).params
    save_params(tmp_path / "average_last_2", params)
    with pytest.raises(InputError, match=f"{tmp_path}/average_last_2 .*already"):
        save_params(tmp_path / "average_last_2", make_state(5).params)
    assert verify(tmp_path / "average_last_2") == []


def test_parameters_that_cannot_be_written_leave_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=f"{tmp_path}/file/average .*written: "):
        save_params(tmp_path / "file" / "average", make_state(4).params)

    def interrupt(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxformer.storage.parameters.write_manifest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_params(tmp_path / "average_last_2", make_state(4).params)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
