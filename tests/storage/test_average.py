"""An average is the mean of the parameters, has a name, and lives beside the steps."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_states import ranked_by

from jaxformer.errors import InputError
from jaxformer.storage.average import average_checkpoints
from jaxformer.storage.checkpoint import Checkpointer, list_steps, load_params, resolve_checkpoint
from jaxformer.storage.manifest import verify
from jaxformer.storage.parameters import read_meta
from jaxformer.training.state import TrainState

ABSTRACT = {
    "kernel": jax.ShapeDtypeStruct((2, 3), jnp.float32),
    "scale": jax.ShapeDtypeStruct((3,), jnp.bfloat16),
}


def params_of(step):
    draw = np.random.default_rng(step)
    return {
        name: jnp.asarray(draw.normal(size=leaf.shape), leaf.dtype)
        for name, leaf in ABSTRACT.items()
    }


def make_state(step):
    return TrainState(jnp.int32(step), params_of(step), (), params_of(step + 100))


@pytest.fixture
def checkpoints(tmp_path):
    """Steps 1 to 5 with BLEU 5, 1, 9, none, 7."""
    checkpointer = Checkpointer(tmp_path, keep=9, ranking=ranked_by("bleu"))
    for step, bleu in enumerate((5.0, 1.0, 9.0, None, 7.0), 1):
        meta = {"identity": {"row_multiple": step}, "selection": {"waiting": step}}
        metrics = None if bleu is None else {"bleu": bleu}
        checkpointer.save(step, make_state(step), meta, metrics)
    checkpointer.wait()
    checkpointer.close()
    return tmp_path


def average(directory, choose, count):
    return average_checkpoints(
        directory, ABSTRACT, count=count, choose=choose, ranking=ranked_by("bleu")
    )


@pytest.mark.parametrize(
    ("choose", "count", "steps"), [("last", 2, [4, 5]), ("best", 3, [1, 3, 5])]
)
def test_it_is_the_mean_of_the_plain_parameters(checkpoints, choose, count, steps):
    assert average(checkpoints, choose, count) == (f"average_{choose}_{count}", steps)
    folder = resolve_checkpoint(checkpoints, f"average_{choose}_{count}", ranked_by("bleu"))
    found = load_params(folder, ABSTRACT)
    for name, leaf in ABSTRACT.items():
        stacked = np.stack([np.asarray(params_of(step)[name], np.float64) for step in steps])
        np.testing.assert_array_equal(found[name], stacked.mean(axis=0).astype(leaf.dtype))
        assert found[name].dtype == leaf.dtype
    text = (folder / "steps.txt").read_text()
    assert text == "".join(f"{step}\n" for step in steps)


def test_an_older_average_stays_until_the_new_one_is_whole(checkpoints, monkeypatch):
    average(checkpoints, "last", 2)
    kept = (checkpoints / "average_last_2" / "MANIFEST.json").read_bytes()

    def interrupted(path, params, texts):
        (path / "params").mkdir(parents=True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jaxformer.storage.average.save_params", interrupted)
        with pytest.raises(KeyboardInterrupt):
            average(checkpoints, "last", 2)
    assert (checkpoints / "average_last_2" / "MANIFEST.json").read_bytes() == kept
    assert verify(checkpoints / "average_last_2") == []
    average(checkpoints, "last", 2)
    assert verify(checkpoints / "average_last_2") == []
    assert not list(checkpoints.glob(".average*"))


def test_what_a_killed_average_left_does_not_hinder_the_next(checkpoints, capsys):
    average(checkpoints, "last", 2)
    for name in (".average_last_2", ".average_last_2.older"):
        (checkpoints / name / "params").mkdir(parents=True)
    average(checkpoints, "last", 2)
    assert verify(checkpoints / "average_last_2") == []
    assert not list(checkpoints.glob(".average*")) and capsys.readouterr().err == ""


def test_an_average_that_is_a_link_is_replaced_and_its_files_stay(checkpoints, tmp_path, capsys):
    average(checkpoints, "last", 2)
    elsewhere = tmp_path.with_name(f"{tmp_path.name}_elsewhere") / "average"
    elsewhere.parent.mkdir()
    (checkpoints / "average_last_2").rename(elsewhere)
    (checkpoints / "average_last_2").symlink_to(elsewhere)
    kept = (elsewhere / "MANIFEST.json").read_bytes()
    average(checkpoints, "last", 2)
    assert not (checkpoints / "average_last_2").is_symlink()
    assert verify(checkpoints / "average_last_2") == verify(elsewhere) == []
    assert (elsewhere / "MANIFEST.json").read_bytes() == kept
    assert str(elsewhere) in capsys.readouterr().err
    assert not list(checkpoints.glob(".average*"))


def write_part_of_it(path, params, texts):
    (path / "params").mkdir(parents=True)
    raise OSError(30, "Read-only file system", str(path))


def fail_to_rename(self, target):
    raise OSError(30, "Read-only file system", str(self))


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("jaxformer.storage.parameters._write_params", write_part_of_it),
        ("pathlib.Path.rename", fail_to_rename),
    ],
)
def test_a_folder_that_cannot_be_written_is_bad_input_and_nothing_stays(
    checkpoints, monkeypatch, name, replacement
):
    average(checkpoints, "last", 2)
    with monkeypatch.context() as patch:
        patch.setattr(name, replacement)
        with pytest.raises(InputError) as refused:
            average(checkpoints, "last", 2)
    assert str(checkpoints) in str(refused.value)
    assert "Read-only file system" in str(refused.value)
    assert not list(checkpoints.glob(".average*"))
    assert verify(checkpoints / "average_last_2") == []


def test_a_disk_that_fills_up_is_bad_input_and_nothing_stays(tmp_path):
    wide = {"kernel": jax.ShapeDtypeStruct((512, 512), jnp.float32)}
    weights = {"kernel": jax.random.normal(jax.random.key(0), (512, 512))}
    with Checkpointer(tmp_path, keep=2, ranking=ranked_by("bleu")) as checkpointer:
        checkpointer.save(1, TrainState(jnp.int32(1), weights, (), None), {}, None)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (96 * 1024, limits[1]))
    try:
        with pytest.raises(InputError) as refused:
            average_checkpoints(tmp_path, wide, count=1, choose="last", ranking=ranked_by("bleu"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(tmp_path) in str(refused.value) and "File too large" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_it_is_verified_and_knows_its_run(checkpoints):
    average(checkpoints, "best", 2)
    assert verify(checkpoints / "average_best_2") == []
    assert read_meta(checkpoints / "average_best_2") == {"identity": {"row_multiple": 5}}
    (checkpoints / "average_best_2" / "steps.txt").write_text("3\n4\n")
    problems = verify(checkpoints / "average_best_2")
    assert len(problems) == 1 and problems[0].startswith("steps.txt: ") and "crc32" in problems[0]


def test_a_damaged_checkpoint_is_not_averaged(checkpoints):
    (checkpoints / "4" / "params" / "_METADATA").write_bytes(b"")
    with pytest.raises(InputError, match="/4 .*params/_METADATA: 0 bytes"):
        average(checkpoints, "last", 2)
    assert not list(checkpoints.glob("average_*"))


def test_a_second_average_of_the_same_name_replaces_the_first(checkpoints):
    average(checkpoints, "last", 2)
    checkpointer = Checkpointer(checkpoints, keep=9, ranking=ranked_by("bleu"))
    checkpointer.save(6, make_state(6), {}, None)
    checkpointer.close()
    assert average(checkpoints, "last", 2) == ("average_last_2", [5, 6])
    found = load_params(checkpoints / "average_last_2", ABSTRACT)["kernel"]
    both = [np.asarray(params_of(step)["kernel"], np.float64) for step in (5, 6)]
    np.testing.assert_array_equal(found, (sum(both) / 2).astype(np.float32))


def test_training_goes_on_beside_an_average(checkpoints):
    average(checkpoints, "best", 2)
    checkpointer = Checkpointer(checkpoints, keep=2, ranking=ranked_by("bleu"))
    assert checkpointer.newest_verified() == 5
    checkpointer.save(8, make_state(8), {}, {"bleu": 2.0})
    checkpointer.wait()
    checkpointer.close()
    assert list_steps(checkpoints) == [3, 5, 8]
    kept = load_params(checkpoints / "average_best_2", ABSTRACT)["kernel"]
    both = [np.asarray(params_of(step)["kernel"], np.float64) for step in (3, 5)]
    np.testing.assert_array_equal(kept, (sum(both) / 2).astype(np.float32))


@pytest.mark.parametrize(
    ("choose", "count", "words"),
    [
        ("last", 6, ("--last=6", "5 checkpoints", "1 to 5")),
        ("best", 5, ("--best=5", "4 checkpoints", "for bleu", "1 to 4")),
        ("last", 0, ("--last=0", "5 checkpoints", "1 to 5")),
    ],
)
def test_more_than_there_are_is_refused(checkpoints, choose, count, words):
    with pytest.raises(InputError) as refused:
        average(checkpoints, choose, count)
    assert all(word in str(refused.value) for word in (*words, str(checkpoints)))
    assert "training.keep_checkpoints" in str(refused.value)
    assert not list(checkpoints.glob("average_*"))
