"""Workdirs in use, vanished or not to be written, and a compilation cache that is damaged."""

import os
import re
import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.fault

LONG = "--config.training.num_steps=100000"


def test_two_runs_in_one_workdir(soak, tiny_run, tmp_path):
    workdir = tmp_path / "run"
    first = tiny_run.start(workdir, LONG)
    assert first.wait_for(lambda: first.reached)
    second = tiny_run.start(workdir, LONG)
    second.finish(2)
    pid = first.process.pid
    refused = [line for line in second.lines if line.startswith("error: ")]
    assert len(refused) == 1 and "Traceback" not in second.output
    assert re.search(rf"{workdir} .*process {pid} on \S+, since 20", refused[0])
    reached = first.reached
    assert first.wait_for(lambda: first.reached > reached)  # it takes no notice

    first.kill()
    third = tiny_run.start(workdir, "--config.training.num_steps=40", "--allow_changes=training")
    assert third.wait_for(lambda: third.resumed is not None), third.output
    assert re.search(rf"{workdir}/lock .*process {pid} on .*stale", third.output)
    third.kill()


def test_a_workdir_that_vanishes_ends_the_run_and_is_not_made_again(tiny_run, tmp_path):
    workdir = tmp_path / "run"
    start = tiny_run.start(workdir, LONG)
    assert start.wait_for(lambda: start.reached)
    os.rename(workdir, tmp_path / "moved")
    start.finish(2)
    assert re.search(f"error: {workdir / 'lock'} .*deleted or moved", start.output)
    assert "Traceback" not in start.output
    assert not workdir.exists()
    again = tiny_run.start(tmp_path / "moved", LONG)
    assert again.wait_for(lambda: again.resumed is not None), again.output
    again.kill()


@pytest.mark.parametrize("place", ["file/run", "closed/run", "closed"])
def test_a_workdir_that_cannot_be_written(tiny_run, tmp_path, patched, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o555)
    # Root may write everywhere: it gives that up while the lock is taken.
    drop = (
        "import os\n"
        "from jaxformer.storage.lock import WorkdirLock\n"
        "enter, user = WorkdirLock.__enter__, os.geteuid()\n"
        "def enter_as_nobody(lock):\n"
        "    if user == 0: os.seteuid(65534)\n"
        "    try: return enter(lock)\n"
        "    finally: os.seteuid(user)\n"
        "WorkdirLock.__enter__ = enter_as_nobody\n"
    )
    start = tiny_run.start(tmp_path / place, program=patched(drop))
    start.finish(2)
    assert f"error: the workdir {tmp_path / place} cannot be written (" in start.output
    assert "Traceback" not in start.output


def test_a_damaged_compilation_cache_is_only_slower(soak, tiny_run, tmp_path):
    # In place: the names of the entries follow from the path of their folder.
    cache = Path(tiny_run.environment["JAX_COMPILATION_CACHE_DIR"])
    shutil.copytree(cache, tmp_path / "xla")
    entries = sorted(cache.glob("*-cache"))
    assert len(entries) >= 4
    try:
        for number, entry in enumerate(entries):
            content = bytearray(entry.read_bytes())
            if number % 3 == 0:
                content[len(content) // 2] ^= 0x10
            del content[[len(content), len(content) // 2, 0][number % 3] :]
            entry.write_bytes(content)
        start = tiny_run.start(tmp_path / "run")
        start.finish(0)
    finally:
        shutil.rmtree(cache)
        shutil.copytree(tmp_path / "xla", cache)
    assert "Error reading persistent compilation cache entry" in start.output
    assert soak.digest(tmp_path / "run") == tiny_run.digest
