"""`python -m jaxformer verify`: what it says of good, damaged, foreign and refused files."""

from pathlib import Path

import pytest
from saved_states import save_steps

from jaxformer.__main__ import main
from jaxformer.storage import manifest
from jaxformer.storage.manifest import MANIFEST


@pytest.fixture
def checkpoints(tmp_path):
    """Checkpoints of the steps 1 and 2 of the workdir `tmp_path`."""
    save_steps(tmp_path / "checkpoints", [{"bleu": 1.0}, None])
    return tmp_path / "checkpoints"


def verify(checkpoints, *flags):
    return main(["verify", f"--workdir={checkpoints.parent}", *flags])


def test_stray_files_are_named_and_do_no_harm(checkpoints, capsys):
    for name in (".DS_Store", "params/.nfs0001"):
        (checkpoints / "1" / name).write_text("")
    assert verify(checkpoints) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1: good, ") and ".DS_Store" in first and "params/.nfs0001" in first
    assert second.startswith("2: good, ") and second.endswith(" bytes")


def test_a_stray_file_that_would_be_read_is_damage(checkpoints, capsys):
    (checkpoints / "2" / "metrics").mkdir()
    (checkpoints / "2" / "metrics" / "metrics").write_text('{"bleu": 99}')
    assert verify(checkpoints) == 2
    printed = capsys.readouterr()
    assert "2: DAMAGED: metrics/metrics: " in printed.out
    assert printed.err.startswith("error: 1 of 2 ") and str(checkpoints) in printed.err


def test_refused_checkpoints_are_listed_and_not_judged(checkpoints, capsys):
    for name in ("1.refused", "1.refused.2"):
        (checkpoints / name).mkdir()
    assert verify(checkpoints) == 0
    out = capsys.readouterr().out
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        "1", "2", "1.refused", "1.refused.2",
    ]  # fmt: skip


def test_a_link_that_leads_nowhere_is_damage(checkpoints, tmp_path, capsys):
    (checkpoints / "3").symlink_to(tmp_path / "unmounted")
    assert verify(checkpoints) == verify(checkpoints, "--accept") == 2
    out = capsys.readouterr().out
    assert out.count(f"3: DAMAGED: {MANIFEST}: missing") == 2 and str(tmp_path / "unmounted") in out


def test_what_cannot_be_written_or_listed_is_bad_input(checkpoints, monkeypatch, capsys):
    (checkpoints / "2" / MANIFEST).unlink()

    def refuse(path, text):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(manifest, "_replace_synchronised", refuse)
    assert verify(checkpoints, "--accept") == 2
    assert f"{checkpoints}/2: " in (error := capsys.readouterr().err)
    assert "Read-only file system" in error

    def hide(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", hide)
    assert verify(checkpoints) == 2
    assert f"{checkpoints} " in (error := capsys.readouterr().err)
    assert "Permission denied" in error
    (checkpoints.parent / "empty").mkdir()
    assert main(["verify", f"--workdir={checkpoints.parent / 'empty'}"]) == 2
    assert f"{checkpoints.parent / 'empty'}/checkpoints" in capsys.readouterr().err
