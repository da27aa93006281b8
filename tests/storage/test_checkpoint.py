"""Checkpoints: what comes back, what is kept, what they are called, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.storage.checkpoint import (
    Checkpointer,
    list_steps,
    load_params,
    ranked_steps,
    resolve_checkpoint,
    save_params,
    step_metrics,
)
from jaxformer.training.state import TrainState


def make_state(step, *, ema=False):
    """A state whose numbers all follow from its step."""
    params = {
        "encoder": {"kernel": jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3) * step},
        "token_embedding": {"embedding": jnp.full((4, 2), 0.5 + step, jnp.bfloat16)},
    }
    moments = jax.tree.map(lambda p: p + 1, params)
    return TrainState(
        step=jnp.int32(step),
        params=params,
        opt_state=(jnp.int32(step), moments),
        ema_params=jax.tree.map(lambda p: -p, params) if ema else None,
    )


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def shapes(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def save_steps(directory, metrics, *, keep=9, best_metric="bleu", ema=False):
    """Save the steps 1, 2, ... with an evaluation each, or None for none."""
    checkpointer = Checkpointer(directory, keep=keep, best_metric=best_metric)
    for step, one in enumerate(metrics, 1):
        checkpointer.save(step, make_state(step, ema=ema), {"n": step}, one)
    checkpointer.wait()
    checkpointer.close()


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert jax.tree.map(lambda x: x.dtype, one) == jax.tree.map(lambda x: x.dtype, other)


@pytest.mark.parametrize("ema", [False, True])
def test_a_state_comes_back_as_it_was(tmp_path, ema):
    checkpointer = Checkpointer(tmp_path, keep=2, best_metric="bleu")
    assert checkpointer.latest_step is None
    state = make_state(7, ema=ema)
    meta = {"selection": {"best": 1.5, "best_step": 3, "waiting": 0}, "é": None}
    checkpointer.save(7, state, meta, None)
    checkpointer.wait()
    assert checkpointer.latest_step == 7
    restored, found = checkpointer.restore(7, abstract(state))
    assert found == meta
    assert isinstance(restored, TrainState) and (restored.ema_params is not None) == ema
    assert_same(restored, state)
    checkpointer.close()


def test_saving_copies_before_it_returns(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep=2, best_metric="bleu")
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * 2, tree), donate_argnums=0)
    state = make_state(3)
    expected = jax.device_get(jax.tree.map(jnp.copy, state.params))
    checkpointer.save(3, state, {}, None)
    for _ in range(5):
        state = update(state)
    checkpointer.wait()
    checkpointer.close()
    assert_same(load_params(tmp_path / "3", shapes(state.params)), expected)


BLEU = [{"bleu": value, "loss": value} for value in (3.0, 9.0, 1.0, 2.0)]


@pytest.mark.parametrize(
    ("best_metric", "kept", "ranked"), [("bleu", [2, 4, 5], [2, 4]), ("loss", [3, 4, 5], [3, 4])]
)
def test_the_newest_and_the_best_are_kept(tmp_path, best_metric, kept, ranked):
    save_steps(tmp_path, [*BLEU, None], keep=2, best_metric=best_metric)
    assert list_steps(tmp_path) == kept
    assert ranked_steps(tmp_path, best_metric) == ranked
    assert step_metrics(tmp_path, 4) == BLEU[3] and step_metrics(tmp_path, 5) == {}
    best = resolve_checkpoint(tmp_path, "best", best_metric)
    assert best == tmp_path / str(ranked[0])


def test_of_equal_checkpoints_the_later_is_the_best(tmp_path):
    save_steps(tmp_path, [{"bleu": 5.0}, {"bleu": 5.0}, {"bleu": 1.0}, {"bleu": 1.0}], keep=1)
    assert list_steps(tmp_path) == [2, 4]
    assert ranked_steps(tmp_path, "bleu") == [2, 4]


def test_incomplete_folders_are_no_steps(tmp_path):
    save_steps(tmp_path / "c", [None, None])
    for name in ("3", "4.orbax-checkpoint-tmp", "average_last_2", "²", "notes"):
        (tmp_path / "c" / name).mkdir()
    assert list_steps(tmp_path / "c") == [1, 2]
    assert list_steps(tmp_path / "nothing") == []
    assert resolve_checkpoint(tmp_path / "c", "latest", "bleu") == tmp_path / "c" / "2"
    with pytest.raises(InputError, match=r"c/3 is not a complete checkpoint.*delete it"):
        Checkpointer(tmp_path / "c", keep=2, best_metric="bleu")
    (tmp_path / "c" / "3").rmdir()
    (tmp_path / "c" / "²").rmdir()
    assert Checkpointer(tmp_path / "c", keep=2, best_metric="bleu").latest_step == 2


def test_names_of_checkpoints(tmp_path):
    save_steps(tmp_path, [{"bleu": 8.0}, {"bleu": 2.0}, None])
    save_params(tmp_path / "average_last_2", make_state(1).params)
    (tmp_path / "average_best_9").mkdir()  # of an average that was not finished
    names = {name: resolve_checkpoint(tmp_path, name, "bleu").name for name in
             ("best", "latest", "2", "average_last_2")}  # fmt: skip
    assert names == {"best": "1", "latest": "3", "2": "2", "average_last_2": "average_last_2"}
    for wrong in ("7", "02", "average_best_9", "newest", "..", ""):
        with pytest.raises(InputError) as refused:
            resolve_checkpoint(tmp_path, wrong, "bleu")
        assert str(refused.value) == (
            f"--checkpoint={wrong} is not in {tmp_path}; there are: best, latest, 1, 2, 3, "
            "average_last_2"
        )


def test_best_is_the_newest_where_nothing_was_evaluated(tmp_path):
    save_steps(tmp_path, [None, None])
    assert resolve_checkpoint(tmp_path, "best", "bleu") == tmp_path / "2"


def test_an_average_alone_is_found_by_its_name_only(tmp_path):
    save_params(tmp_path / "average_last_2", make_state(1).params)
    assert resolve_checkpoint(tmp_path, "average_last_2", "bleu") == tmp_path / "average_last_2"
    for name in ("best", "latest"):
        with pytest.raises(InputError, match=f"={name} is not in .*; there are: average_last_2$"):
            resolve_checkpoint(tmp_path, name, "bleu")


def test_a_folder_without_checkpoints_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError) as refused:
        resolve_checkpoint(tmp_path / "run" / "checkpoints", "best", "bleu")
    assert str(refused.value) == (
        f"{tmp_path}/run/checkpoints holds no checkpoint; train first: python train.py "
        f"--workdir={tmp_path}/run"
    )


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
    assert str(refused.value) == (
        f"{tmp_path}/1/params does not hold this model's parameters:\n"
        "  decoder/kernel: missing\n"
        "  encoder/kernel: not in the model\n"
        "  token_embedding/embedding: (4, 2) instead of (5, 2)"
    )


def test_a_long_list_of_differences_is_cut_and_counted(tmp_path):
    save_steps(tmp_path, [None])
    like = shapes(make_state(1).params)
    like |= {f"layer_{i:02}": jax.ShapeDtypeStruct((1,), jnp.float32) for i in range(25)}
    with pytest.raises(InputError) as refused:
        load_params(tmp_path / "1", like)
    lines = str(refused.value).split("\n")
    assert len(lines) == 22 and lines[-1] == "  and 5 more"
