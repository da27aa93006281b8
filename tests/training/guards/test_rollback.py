"""Which checkpoint a spike of the loss is answered with, and when training ends instead."""

import types

import pytest

from jaxformer.config import TrainingConfig
from jaxformer.storage.manifest import write_manifest
from jaxformer.training.guards.rollback import ROLLBACKS, newest_scheduled, roll_back
from jaxformer.training.guards.spikes import Spike

SPIKE = Spike(step=60, loss=4.5, usual=2.0, before=51, rollbacks=0)


@pytest.fixture
def run(tmp_path):
    """Saved every 20 steps, evaluated every 50, and at 33 by a signal."""
    for step in (20, 33, 40, 50, 60):
        (tmp_path / str(step)).mkdir()
        (tmp_path / str(step) / "params").write_bytes(b"weights")
        write_manifest(tmp_path / str(step))
    training = TrainingConfig(log_every=10, save_every=20, eval_every=50, spike_factor=1.5)
    return types.SimpleNamespace(
        config=types.SimpleNamespace(training=training),
        workdir=types.SimpleNamespace(checkpoints=tmp_path),
    )


def test_the_newest_checkpoint_before_the_spike_that_no_signal_saved(run):
    found = [newest_scheduled(run, before) for before in (100, 60, 50, 40, 34, 20)]
    assert found == [60, 50, 40, 20, 20, None]


def test_a_damaged_checkpoint_is_passed_over_loudly(run, capsys):
    (run.workdir.checkpoints / "50" / "params").write_bytes(b"wEights")
    assert newest_scheduled(run, 51) == 40
    out = capsys.readouterr().out
    assert "REFUSED: the checkpoint of step 50 in" in out and "is damaged: params: " in out


class NothingToRestore:
    """A `Checkpointer` that is waited for and then not used."""

    def newest_verified(self):
        return 60


@pytest.mark.parametrize(
    ("spike", "reason"),
    [
        (SPIKE._replace(rollbacks=ROLLBACKS), r"\b3 rollbacks.* optimizer.learning_rate"),
        (SPIKE._replace(before=20), r"step 20\b.*raise training.keep_checkpoints"),
    ],
)
def test_training_ends_where_going_back_cannot_help(run, spike, reason):
    recorder = types.SimpleNamespace(spike=spike)
    found = r"\b10 steps up to 60 .*4\.500.*training\.spike_factor=1\.5 .*2\.000"
    with pytest.raises(FloatingPointError, match=f"{found}.*{reason}"):
        roll_back(run, NothingToRestore(), recorder, state=None)
    assert recorder.spike is spike
