"""A run killed at any moment ends with the parameters of one that was not."""

import collections

import pytest

pytestmark = pytest.mark.fault

KILL_IN_COMMIT = """
import os, signal
from jaxformer.storage import checkpoint

write = checkpoint.write_manifest

def write_or_die(folder):
    if folder.name == "{step}":
        os.kill(os.getpid(), signal.SIGKILL)
    write(folder)

checkpoint.write_manifest = write_or_die
"""


def test_twenty_kills_at_random_moments_change_nothing(soak, tmp_path, capsys):
    outcome = soak.Soak(tmp_path, kills=20, seed=7).run()
    text = soak.report(outcome)
    print(text)
    kills, (killed, whole) = outcome.kills, outcome.digests
    assert len(kills) == 20, text
    phases = collections.Counter(kill.phase for kill in kills)
    assert phases["save"] >= 3 and phases["step"] >= 2 and phases["start-up"] >= 1, text
    assert len({kill.complete for kill in kills}) >= 4, text  # it got on between the kills
    assert killed == whole, text
    # Every step is logged once, with the figures that it has without kills: none is left out.
    assert [row[0] for row in outcome.figures[1]] == list(range(1, 201))
    assert outcome.figures[0] == outcome.figures[1]
    for kill in kills:
        assert kill.resumed == kill.complete, kill
        # One interval, and the steps that were done while its save was being written.
        assert kill.repeated <= 2 * soak.SAVE_EVERY, kill
    assert text.split("\n")[-1] == "equal"


@pytest.mark.parametrize("step", [5, 15])
def test_a_kill_between_a_save_and_its_manifest(soak, tiny_run, patched, tmp_path, step):
    """The first checkpoint of a run, or one that others came before."""
    died = tiny_run.start(tmp_path / "run", program=patched(KILL_IN_COMMIT.format(step=step)))
    assert died.finish() == -9
    assert (tmp_path / "run" / "checkpoints" / str(step)).is_dir()
    again = tiny_run.start(tmp_path / "run")
    again.finish(0)
    assert again.resumed == step - 5
    assert soak.digest(tmp_path / "run") == tiny_run.digest
