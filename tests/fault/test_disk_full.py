"""A full disk: known before the next save, never at the cost of a checkpoint that was good."""

import contextlib
import re
import resource
import shutil
import subprocess

import jax
import numpy as np
import pytest
from saved_states import make_state, ranked_by
from training_run import replace_measurement, small_config, write_corpus

from jaxformer.decoding.translator import abstract_params
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluator import Samples
from jaxformer.models.transformer import Transformer
from jaxformer.storage import checkpoint as checkpoint_module
from jaxformer.storage.checkpoint import Checkpointer, list_steps, load_params
from jaxformer.storage.manifest import verify
from jaxformer.storage.workdir import Workdir
from jaxformer.training.loop import train
from jaxformer.training.validation import write_samples

pytestmark = pytest.mark.fault

MEBIBYTE = 1 << 20


class ScarceDisk:
    """A folder whose disk can be filled: a small tmpfs, or a limit of the size of files.

    Attributes:
      path: of the folder.
      mounted: whether it is a tmpfs; mounting is not allowed everywhere.
    """

    def __init__(self, path, mounted):
        self.path, self.mounted = path, mounted
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def exhaust(self, left=96 * 1024):
        """Leave room for logs, not for arrays."""
        if self.mounted:
            free = shutil.disk_usage(self.path).free
            (self.path / "ballast").write_bytes(bytes(max(free - left, 0)))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (left, self._limits[1]))

    def relieve(self):
        (self.path / "ballast").unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)


@contextlib.contextmanager
def scarce_disk(path, *, mount):
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(path)]
    mounted = mount and shutil.which("mount") and not subprocess.run(
        command, capture_output=True, check=False
    ).returncode  # fmt: skip
    disk = ScarceDisk(path, bool(mounted))
    try:
        yield disk
    finally:
        disk.relieve()
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(params=["tmpfs", "file size"])
def disk(request, tmp_path):
    """A tmpfs where mounting is allowed, and a file-size limit everywhere."""
    with scarce_disk(tmp_path / "disk", mount=request.param == "tmpfs") as one:
        yield one


def large_state(step):
    """A state of 8 MiB that does not compress."""
    weights = jax.random.normal(jax.random.key(step), (1024, 1024))
    params = {"kernel": weights}
    return make_state(step)._replace(params=params, opt_state=({"kernel": weights + 1},))


@pytest.fixture
def without_foresight(monkeypatch):
    """The disk fills up after it was asked for its free space."""
    monkeypatch.setattr(checkpoint_module, "require_space", lambda path, needed: None)


def test_it_is_said_before_the_next_save_and_the_good_one_stays(disk, without_foresight):
    said = []
    directory = disk.path / "checkpoints"
    with Checkpointer(
        directory, keep=9, ranking=ranked_by("bleu"), report=said.append
    ) as checkpointer:
        checkpointer.save(1, large_state(1), {}, None)
        checkpointer.wait()
        disk.exhaust()
        checkpointer.save(2, large_state(2), {}, None)
        with pytest.raises(InputError, match="step 2 .*NOT saved"):
            checkpointer.wait()
        (line,) = said
        assert re.search(r"step 2 .*NOT saved: .*last good one .*\b1\b", line)
        assert [path.name for path in directory.iterdir()] == ["1"]  # and nothing takes up room
        assert verify(directory / "1") == []
        disk.relieve()
        checkpointer.save(3, large_state(3), {}, None)
        checkpointer.wait()
        assert checkpointer.newest_verified() == 3
    assert list_steps(directory) == [1, 3] and len(said) == 1


def test_room_is_asked_for_before_anything_is_written(tmp_path):
    with scarce_disk(tmp_path / "disk", mount=True) as disk:
        directory, said = disk.path / "checkpoints", []
        with Checkpointer(
            directory, keep=9, ranking=ranked_by("bleu"), report=said.append
        ) as store:
            store.save(1, large_state(1), {}, None)
            store.wait()
            shutil.disk_usage(directory)
            free = 4 * MEBIBYTE
            with pytest.MonkeyPatch.context() as patch:
                if disk.mounted:
                    disk.exhaust(left=free)
                else:
                    patch.setattr("jaxformer.storage.disk_space.free_bytes", lambda path: free)
                store.save(2, large_state(2), {}, None)
            disk.relieve()
            store.save(3, large_state(3), {}, None)
            store.wait()
        (line,) = said
        assert re.search(rf"step 2 .*NOT saved: {directory}: .* 9,\d{{3}},\d{{3}} bytes", line)
        assert list_steps(directory) == [1, 3]


COLUMNS = ("source", "reference", "translation")


def test_samples_that_do_not_fit_are_only_reported(disk, capsys):
    path = disk.path / "samples" / "step_4.tsv"
    disk.exhaust()
    write_samples(path, Samples(COLUMNS, [("one", "un", "un " * 50_000)]))
    assert re.search(f"{path} .*written: ", capsys.readouterr().out)
    disk.relieve()
    assert list(path.parent.iterdir()) == []
    write_samples(path, Samples(COLUMNS, [("one", "un", "u\tn")]))
    assert path.read_text() == "source\treference\ttranslation\none\tun\tu n\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory, compiled_programs):
    """A run of 16 steps that saves every 4, and its workdir on a disk with room."""
    folder = tmp_path_factory.mktemp("run")
    config = small_config(
        write_corpus(folder / "corpus"), folder / "cache", training__num_steps=16,
        training__log_every=4, training__save_every=4, training__eval_every=1000,
        training__keep_checkpoints=9,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        replace_measurement(patch, [1.0] * 3)
        assert train(config, folder / "run").exit_status == 0
    return config, folder / "run"


def params(workdir, step):
    model = Transformer(Workdir(workdir).load_config().model)
    return load_params(workdir / "checkpoints" / str(step), abstract_params(model))


def exhaust_at(monkeypatch, disk, first, last):
    """The disk is full at the saves from step `first` to step `last`."""
    save = Checkpointer.save

    def save_on_full_disk(self, step, *rest):
        self._join()  # the save before is not meant to fail
        if step == first:
            disk.exhaust()
        if step > last:
            disk.relieve()
        save(self, step, *rest)

    monkeypatch.setattr(Checkpointer, "save", save_on_full_disk)


def test_a_run_goes_on_and_ends_as_if_nothing_had_been(
    run, disk, monkeypatch, without_foresight, capsys
):
    config, whole = run
    exhaust_at(monkeypatch, disk, 8, 12)
    replace_measurement(monkeypatch, [1.0] * 3)
    assert train(config, disk.path / "run").exit_status == 0
    out = capsys.readouterr().out
    failures = re.findall(r"step (\d+) .*NOT saved: .*last good one .*\b(\d+)\b", out)
    assert failures == [("8", "4"), ("12", "4")]
    assert list_steps(disk.path / "run" / "checkpoints") == [4, 16]
    found, expected = params(disk.path / "run", 16), params(whole, 16)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_disk_that_stays_full_ends_the_run_and_the_same_command_goes_on_later(
    run, disk, monkeypatch, without_foresight, capsys
):
    config, whole = run
    with pytest.MonkeyPatch.context() as patch:
        exhaust_at(patch, disk, 8, 16)
        replace_measurement(patch, [1.0] * 3)
        with pytest.raises(InputError, match=r"step 16 .*NOT saved: .*\b3\b"):
            train(config, disk.path / "run")
    assert list_steps(disk.path / "run" / "checkpoints") == [4]
    disk.relieve()
    replace_measurement(monkeypatch, [1.0] * 3)
    assert train(config, disk.path / "run").step == 16
    assert re.search("resuming .*step 4 ", capsys.readouterr().out)
    found, expected = params(disk.path / "run", 16), params(whole, 16)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
