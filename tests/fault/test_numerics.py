"""Batches that give NaN or spoil the model: what they cost, and that resuming changes nothing."""

import re
import shutil
import signal

import numpy as np
import pytest
from training_run import (
    change,
    read_metrics,
    replace_measurement,
    send_signal_after,
    small_config,
    write_corpus,
)

import jaxformer.data.pair_dataset
from jaxformer.decoding.translator import abstract_params
from jaxformer.models.transformer import Transformer
from jaxformer.storage.checkpoint import list_steps, load_params
from jaxformer.storage.workdir import Workdir
from jaxformer.training.loop import train

pytestmark = [pytest.mark.fault, pytest.mark.usefixtures("compiled_programs", "one_device")]

FOREVER = range(9, 1_000_000)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """24 steps, logged every 4 and saved every 6."""
    folder = tmp_path_factory.mktemp("numerics")
    return small_config(
        write_corpus(folder / "corpus"), folder / "cache", training__num_steps=24,
        training__log_every=4, training__save_every=6, training__eval_every=1000,
        training__keep_checkpoints=10,
    )  # fmt: skip


@pytest.fixture
def spiking(config):
    """40 steps, judged every 2 and saved every 8."""
    return change(
        config, training__num_steps=40, training__log_every=2, training__save_every=8,
        training__spike_factor=1.2,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def quick_evaluation(monkeypatch):
    replace_measurement(monkeypatch, [1.0] * 20)


def damage(monkeypatch, steps, change_batch):
    """Call `change_batch(batch, step)` on the batches of `steps`, counted from 0."""
    make_batch = jaxformer.data.pair_dataset.make_batch

    def make_damaged(corpus, plan, step, *rest, **named):
        batch = make_batch(corpus, plan, step, *rest, **named)
        if step in steps:
            change_batch(batch, step)
        return batch

    monkeypatch.setattr(jaxformer.data.pair_dataset, "make_batch", make_damaged)


def poison(monkeypatch, steps):
    """An id that the embedding does not have: its row is NaN, and so are loss and gradient."""

    def change_batch(batch, step):
        batch["inputs"][0, 0] = 10_000

    damage(monkeypatch, steps, change_batch)


def scramble(monkeypatch, steps):
    """Bytes that no sentence has for targets: a finite gradient, and a loss far above the usual."""

    def change_batch(batch, step):
        drawn = np.random.default_rng(step).integers(10, 250, batch["targets"].shape)
        batch["targets"] = np.where(batch["targets"] > 3, drawn, batch["targets"]).astype(np.int32)

    damage(monkeypatch, steps, change_batch)


def params_of(workdir, step):
    abstract = abstract_params(Transformer(Workdir(workdir).load_config().model))
    return load_params(workdir / "checkpoints" / str(step), abstract)


def assert_same(one, other):
    for name, leaf in one.items():
        if isinstance(leaf, dict):
            assert_same(leaf, other[name])
        else:
            np.testing.assert_array_equal(leaf, other[name], err_msg=name)


def differ(one, other):
    try:
        assert_same(one, other)
    except AssertionError:
        return True
    return False


def fall_back_to(whole, workdir, step):
    """What `kill -9` leaves: `whole` with no checkpoint after `step`."""
    shutil.copytree(whole, workdir)
    for later in list_steps(workdir / "checkpoints"):
        if later > step:
            shutil.rmtree(workdir / "checkpoints" / str(later))
    return workdir


def steps_of(workdir, split):
    return [row["step"] for row in read_metrics(workdir, split)]


def test_a_batch_of_nan_costs_its_own_update_and_nothing_else(config, tmp_path, monkeypatch):
    config = change(config, training__num_steps=4, training__save_every=1, training__log_every=2)
    train(config, tmp_path / "sound")
    poison(monkeypatch, [2])
    assert train(config, tmp_path / "run").exit_status == 0
    for step in (1, 2):
        assert_same(params_of(tmp_path / "run", step), params_of(tmp_path / "sound", step))
    assert_same(params_of(tmp_path / "run", 3), params_of(tmp_path / "run", 2))
    assert differ(params_of(tmp_path / "run", 4), params_of(tmp_path / "run", 3))
    (skipped,) = read_metrics(tmp_path / "run", "skipped")
    assert skipped.pop("reason").count("nan") == 2  # of the loss and of the gradient's norm
    assert skipped == {"step": 3, "split": "skipped", "batch": 2}
    rows = read_metrics(tmp_path / "run", "train")
    assert [row["skipped"] for row in rows] == [0, 1]
    assert all(np.isfinite(row["loss"]) and np.isfinite(row["gradient_norm"]) for row in rows)


def test_resuming_between_and_before_skipped_updates_changes_nothing(config, tmp_path, monkeypatch):
    poison(monkeypatch, [9, 10])
    train(config, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        send_signal_after(patch, 10, signal.SIGTERM)
        assert train(config, tmp_path / "stopped").exit_status == 143
    assert list_steps(tmp_path / "stopped" / "checkpoints") == [6, 10]
    fall_back_to(tmp_path / "whole", tmp_path / "killed", 6)
    for name in ("stopped", "killed"):
        assert train(config, tmp_path / name).step == 24
        assert_same(params_of(tmp_path / name, 24), params_of(tmp_path / "whole", 24))
        assert steps_of(tmp_path / name, "skipped") == [10, 11]


def test_nan_for_ever_ends_the_run_and_only_good_states_are_saved(config, tmp_path, monkeypatch):
    """Started again it ends at the same step; once the data are repaired, it goes on."""
    workdir = tmp_path / "run"
    steps = ", ".join(map(str, range(10, 20)))
    with pytest.MonkeyPatch.context() as patch:
        poison(patch, FOREVER)
        for _ in range(2):
            with pytest.raises(FloatingPointError, match=f"10 updates .*{steps}\\b"):
                train(config, workdir)
            assert list_steps(workdir / "checkpoints") == [6, 12, 18]
            assert steps_of(workdir, "skipped") == list(range(10, 20))
    assert_same(params_of(workdir, 18), params_of(workdir, 12))
    assert all(np.isfinite(leaf).all() for leaf in leaves(params_of(workdir, 18)))
    assert differ(params_of(workdir, 12), params_of(workdir, 6))
    assert train(config, workdir).exit_status == 0
    assert differ(params_of(workdir, 24), params_of(workdir, 18))


def leaves(tree):
    for leaf in tree.values():
        yield from leaves(leaf) if isinstance(leaf, dict) else [leaf]


def test_a_spike_is_answered_as_if_all_updates_since_the_checkpoint_were_skipped(
    spiking, tmp_path, monkeypatch
):
    """Steps 27 and 28 spoil the model; the checkpoint before them is that of step 24."""
    with pytest.MonkeyPatch.context() as patch:
        scramble(patch, [26, 27])
        result = train(spiking, tmp_path / "whole")
        assert (result.step, result.exit_status) == (40, 0)
        (row,) = read_metrics(tmp_path / "whole", "rollback")
        assert (row["step"], row["checkpoint"]) == (28, 24)
        assert row["loss"] > 1.2 * row["usual_loss"]
        assert steps_of(tmp_path / "whole", "train") == list(range(2, 41, 2))
        assert list_steps(tmp_path / "whole" / "checkpoints") == [8, 16, 24, 32, 40]
        # A signal that comes before the spike is known does not save a state that it spoilt.
        with pytest.MonkeyPatch.context() as inner:
            send_signal_after(inner, 29, signal.SIGTERM)
            stopped = train(spiking, tmp_path / "stopped")
        assert (stopped.step, stopped.exit_status) == (28, 143)
        assert_same(params_of(tmp_path / "stopped", 28), params_of(tmp_path / "whole", 24))
        fall_back_to(tmp_path / "whole", tmp_path / "killed", 24)
        for name in ("stopped", "killed"):
            assert train(spiking, tmp_path / name).step == 40
            assert_same(params_of(tmp_path / name, 40), params_of(tmp_path / "whole", 40))
            assert steps_of(tmp_path / name, "rollback") == [28]
    poison(monkeypatch, range(24, 28))
    train(change(spiking, training__spike_factor=0.0), tmp_path / "skipped")
    assert_same(params_of(tmp_path / "skipped", 40), params_of(tmp_path / "whole", 40))


def test_spikes_in_a_row_go_back_further_each_time_and_end_the_run(spiking, tmp_path, monkeypatch):
    scramble(monkeypatch, range(26, 1_000_000))
    match = r"\b34\b.*training.spike_factor=1.2 .*\b3 .*optimizer.learning_rate"
    with pytest.raises(FloatingPointError, match=match):
        train(spiking, tmp_path)
    rows = read_metrics(tmp_path, "rollback")
    assert [(row["step"], row["checkpoint"]) for row in rows] == [(28, 24), (30, 16), (32, 8)]
    assert list_steps(tmp_path / "checkpoints") == [8, 16, 24, 32]
    assert_same(params_of(tmp_path, 32), params_of(tmp_path, 8))


def test_a_damaged_checkpoint_is_not_gone_back_to(spiking, tmp_path, monkeypatch, capsys):
    scramble(monkeypatch, [26, 27])
    config = change(spiking, training__num_steps=26)
    train(config, tmp_path)
    (newest, damaged) = tmp_path / "checkpoints" / "26", tmp_path / "checkpoints" / "24"
    assert newest.is_dir()
    (damaged / "meta" / "metadata").write_bytes(b"{")
    assert train(change(config, training__num_steps=30), tmp_path).step == 30
    out = capsys.readouterr().out
    assert re.search("REFUSED: .*step 24 .*meta/metadata", out)
    (row,) = read_metrics(tmp_path, "rollback")
    assert (row["step"], row["checkpoint"]) == (28, 16)
