"""A run that goes on elsewhere: the same data in the same order, the same loss but for rounding."""

import re
import shutil

import jax
import numpy as np
import pytest
from training_run import (
    change,
    read_metrics,
    replace_measurement,
    small_config,
    use_devices,
    write_corpus,
)

from jaxformer.decoding.translator import abstract_params
from jaxformer.models.transformer import Transformer
from jaxformer.storage.checkpoint import load_params
from jaxformer.storage.identity import read_identity
from jaxformer.storage.workdir import Workdir
from jaxformer.training.loop import train
from jaxformer.training.prefetch import DeviceBatches

pytestmark = pytest.mark.fault
STOP, END = 2, 4  # updates before and after the resume
# How the run begins: devices, and changes of the configuration.
BEGINNINGS = {
    # 1000 tokens make rows that 2, 4 or 8 devices cannot share.
    "one device": (1, dict(data__tokens_per_batch=1000)),
    "packed and accumulated on one device": (
        1,
        dict(
            data__tokens_per_batch=1000,
            data__batching="packed",
            data__max_length=24,
            optimizer__accumulation_steps=3,
            optimizer__ema_decay=0.9,
        ),
    ),
    "eight devices": (8, dict(data__tokens_per_batch=1000)),
}
ELSEWHERE = [
    ("one device", 1, {}),
    ("one device", 2, {}),
    ("one device", 4, {}),
    ("one device", 8, dict(mesh__fsdp=2, mesh__tensor=2)),
    ("packed and accumulated on one device", 8, {}),
    ("eight devices", 1, {}),
    ("eight devices", 4, dict(mesh__fsdp=2)),
]


@pytest.fixture(scope="module")
def taken():
    """The batches that training takes, without empty rows at the end; to be cleared by tests."""
    batches, take = [], DeviceBatches.take

    def take_and_keep(self):
        batch = take(self)
        arrays = jax.device_get(batch)
        rows = 1 + int(np.flatnonzero(arrays["inputs"].any(axis=1))[-1])
        assert not any(array[rows:].any() for array in arrays.values())
        batches.append({name: array[:rows] for name, array in arrays.items()})
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceBatches, "take", take_and_keep)
        yield batches


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, compiled_programs, taken):
    """Runs of `END` steps, by how they begin: configuration, workdir and batches."""
    root, runs = tmp_path_factory.mktemp("elsewhere"), {}
    write_corpus(root / "corpus")

    def run(name):
        if name not in runs:
            devices, changes = BEGINNINGS[name]
            config = small_config(
                root / "corpus", root / "cache", training__num_steps=END, training__log_every=1,
                training__save_every=STOP, training__eval_every=100, **changes,
            )  # fmt: skip
            workdir = root / name.replace(" ", "_")
            taken.clear()
            with pytest.MonkeyPatch.context() as patch:
                use_devices(patch, devices)
                replace_measurement(patch, [1.0] * 2)
                train(config, workdir)
            runs[name] = config, workdir, list(taken)
        return runs[name]

    return run


def stored_params(workdir, step):
    model = Transformer(Workdir(workdir).load_config().model)
    return load_params(workdir / "checkpoints" / str(step), abstract_params(model), ema=False)


@pytest.mark.parametrize(("beginning", "devices", "changes"), ELSEWHERE)
def test_the_data_go_on_in_order_and_the_loss_agrees(
    uninterrupted, taken, tmp_path, monkeypatch, capsys, beginning, devices, changes
):
    config, whole, batches = uninterrupted(beginning)
    begun = BEGINNINGS[beginning][0]
    workdir = tmp_path / "run"
    shutil.copytree(whole, workdir)
    shutil.rmtree(workdir / "checkpoints" / str(END))
    taken.clear()
    use_devices(monkeypatch, devices)
    replace_measurement(monkeypatch, [1.0] * 2)
    capsys.readouterr()
    result = train(change(config, **changes), workdir)
    assert (result.step, result.exit_status) == (END, 0)

    # The same rows in the same order.
    expected = batches[STOP:END]
    assert len(taken) == len(expected) == END - STOP
    for found, wanted in zip(taken, expected, strict=True):
        assert found.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name])

    # The same loss, dropout and all.
    losses = [
        {row["step"]: row["loss"] for row in read_metrics(folder, "train")}
        for folder in (workdir, whole)
    ]
    assert losses[0][STOP + 1] == pytest.approx(losses[1][STOP + 1], rel=1e-5)
    assert losses[0][END] == pytest.approx(losses[1][END], rel=1e-3)

    # The same bits where nothing changed; said so where something did.
    out, rows = capsys.readouterr().out, read_metrics(workdir, "resume")
    if devices == begun:
        assert rows == [] and "bit-identical" not in out
        jax.tree.map(
            np.testing.assert_array_equal, stored_params(workdir, END), stored_params(whole, END)
        )
    else:
        assert re.search("not bit-identical .*: hardware.devices, hardware.mesh", out)
        assert rows[0]["changes"]["hardware.devices"] == [begun, devices]
        assert rows[0]["bit_identical"] is False and rows[0]["step"] == STOP
    saved = read_identity(workdir / "checkpoints" / str(END))
    assert saved.hardware["devices"] == devices
    assert saved.row_multiple == begun * config.optimizer.accumulation_steps
