"""Which checkpoints are there, which is the best, and what they are called."""

import re
from pathlib import Path

import pytest
from saved_states import make_state, ranked_by, save_steps

from jaxformer.errors import InputError
from jaxformer.storage.manifest import MANIFEST
from jaxformer.storage.parameters import load_params, save_params
from jaxformer.storage.steps import (
    list_steps,
    ranked_steps,
    resolve_checkpoint,
    step_folders,
    step_metrics,
)


def test_unfinished_folders_are_no_steps(tmp_path):
    save_steps(tmp_path / "c", [None, None])
    for name in (
        "3",
        "4.orbax-checkpoint-tmp",
        "5.refused",
        "5.refused.2",
        "average_last_2",
        "²",
        "07",
        "notes",
    ):
        (tmp_path / "c" / name).mkdir()
    (tmp_path / "c" / "6").write_text("a file")
    assert list_steps(tmp_path / "c") == [1, 2]
    assert list_steps(tmp_path / "nothing") == []
    assert resolve_checkpoint(tmp_path / "c", "latest", ranked_by("bleu")) == tmp_path / "c" / "2"


def test_checkpoints_without_a_manifest_are_found_and_refused_by_name(tmp_path):
    save_steps(tmp_path, [None, None])
    for step in (1, 2):
        (tmp_path / str(step) / MANIFEST).unlink()
    assert list_steps(tmp_path) == []
    for name, step in (("best", 2), ("latest", 2), ("1", 1)):
        folder = resolve_checkpoint(tmp_path, name, ranked_by("bleu"))
        assert folder == tmp_path / str(step)
        with pytest.raises(InputError, match=f"/{step} .*MANIFEST.json: missing"):
            load_params(folder, {})


def test_damaged_metrics_are_no_figures(tmp_path, capsys):
    save_steps(tmp_path, [{"bleu": 1.5}, {"bleu": 2.5}, None])
    assert step_metrics(tmp_path, 2) == {"bleu": 2.5} and step_metrics(tmp_path, 3) == {}
    (tmp_path / "1" / "metrics" / "metrics").write_text('{"bleu": 9.5}')
    with pytest.raises(InputError, match="/1 .*metrics/metrics: .*crc32"):
        step_metrics(tmp_path, 1)
    assert ranked_steps(tmp_path, ranked_by("bleu")) == [2]
    error = capsys.readouterr().err
    assert re.search(f"{tmp_path}/1 .*: metrics/metrics: ", error)


def test_a_damaged_identity_is_no_figure_either(tmp_path):
    save_steps(tmp_path, [{"bleu": 2.5}, {"bleu": 1.5}])
    (tmp_path / "1" / "meta" / "metadata").write_text("{}")
    said = []
    assert ranked_steps(tmp_path, ranked_by("bleu"), said.append) == [2]
    (line,) = said
    assert re.search(f"{tmp_path}/1 .*: meta/metadata: ", line)


def test_metrics_that_no_manifest_lists_are_not_read(tmp_path):
    save_steps(tmp_path, [{"bleu": 2.5}, None])
    (tmp_path / "2" / "metrics").mkdir()
    (tmp_path / "2" / "metrics" / ".DS_Store").write_text("")
    assert step_metrics(tmp_path, 2) == {}
    (tmp_path / "2" / "metrics" / "metrics").write_text('{"bleu": 9.5}')
    with pytest.raises(InputError, match="metrics/metrics: .*MANIFEST.json"):
        step_metrics(tmp_path, 2)
    assert ranked_steps(tmp_path, ranked_by("bleu"), lambda line: None) == [1]


def test_a_directory_that_cannot_be_listed_is_bad_input(tmp_path, monkeypatch):
    save_steps(tmp_path, [None])

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    for name in ("best", "latest", "1", "average_last_2"):
        with pytest.raises(InputError, match=f"{tmp_path} .*: Permission denied"):
            resolve_checkpoint(tmp_path, name, ranked_by("bleu"))


def test_a_link_is_a_checkpoint_and_one_that_leads_nowhere_is_seen(tmp_path):
    save_steps(tmp_path / "c", [None, None])
    (tmp_path / "c" / "1").rename(tmp_path / "elsewhere")
    (tmp_path / "c" / "1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "c" / "3").symlink_to(tmp_path / "nowhere")
    assert list_steps(tmp_path / "c") == [1, 2] and step_folders(tmp_path / "c") == [1, 2, 3]


def test_names_of_checkpoints(tmp_path):
    save_steps(tmp_path, [{"bleu": 8.0}, {"bleu": 2.0}, None])
    save_params(tmp_path / "average_last_2", make_state(1).params)
    (tmp_path / "average_best_9").mkdir()  # of an average that was not finished
    names = {name: resolve_checkpoint(tmp_path, name, ranked_by("bleu")).name for name in
             ("best", "latest", "2", "average_last_2")}  # fmt: skip
    assert names == {"best": "1", "latest": "3", "2": "2", "average_last_2": "average_last_2"}
    for wrong in ("7", "02", "average_best_9", "newest", "..", ""):
        with pytest.raises(InputError) as refused:
            resolve_checkpoint(tmp_path, wrong, ranked_by("bleu"))
        message = str(refused.value)
        assert message.startswith(f"--checkpoint={wrong} ") and str(tmp_path) in message
        assert message.endswith(": best, latest, 1, 2, 3, average_last_2")


def test_best_is_the_newest_where_nothing_was_evaluated(tmp_path):
    save_steps(tmp_path, [None, None])
    assert resolve_checkpoint(tmp_path, "best", ranked_by("bleu")) == tmp_path / "2"


def test_an_average_alone_is_found_by_its_name_only(tmp_path):
    save_params(tmp_path / "average_last_2", make_state(1).params)
    assert (
        resolve_checkpoint(tmp_path, "average_last_2", ranked_by("bleu"))
        == tmp_path / "average_last_2"
    )
    for name in ("best", "latest"):
        with pytest.raises(InputError, match=f"--checkpoint={name} .*: average_last_2$"):
            resolve_checkpoint(tmp_path, name, ranked_by("bleu"))


def test_a_folder_without_checkpoints_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(InputError) as refused:
        resolve_checkpoint(tmp_path / "run" / "checkpoints", "best", ranked_by("bleu"))
    message = str(refused.value)
    assert message.startswith(f"{tmp_path}/run/checkpoints ")
    assert message.endswith(f"python train.py --workdir={tmp_path}/run")
