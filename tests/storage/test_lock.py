"""One run a workdir: who is refused, which locks are stale, and what a holder learns."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxformer.errors import InputError
from jaxformer.storage.lock import Holder, WorkdirLock, machine_id, process_start

HOLDING = """
import sys, time
from pathlib import Path
from jaxformer.storage.lock import WorkdirLock

with WorkdirLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
LEASE = 0.6


@pytest.fixture
def said():
    return []


@pytest.fixture
def lock_of(tmp_path, said):
    """Locks of the workdir `tmp_path / "run"` with a short lease."""

    def make(**settings):
        return WorkdirLock(tmp_path / "run", log=said.append, **{"lease": LEASE} | settings)

    return make


@contextlib.contextmanager
def holding_process(folder):
    """Another process that holds the lock of `folder`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def leave_behind(folder, **changes):
    """A lock file that nobody keeps; changed fields make it another machine's, say."""
    folder.mkdir(exist_ok=True)
    holder = dataclasses.replace(Holder.here(), **changes)
    values = dataclasses.asdict(holder) | {"beat": "0000000007"}
    (folder / "other").write_text(json.dumps(values))
    os.replace(folder / "other", folder / "lock")
    return holder


def test_the_lock_names_its_holder_and_goes_with_it(lock_of, tmp_path, said):
    (tmp_path / "run").mkdir()
    with lock_of() as lock:
        values = json.loads((tmp_path / "run" / "lock").read_bytes())
        assert values["pid"] == os.getpid() and values["machine"] == machine_id()
        assert values["ticks"] == process_start(os.getpid())
        assert values["beat"] == "0000000000"
        lock.check()
        lock.check(now=True)
    assert list((tmp_path / "run").iterdir()) == [] and said == []
    assert not any(thread.name == "workdir lock" for thread in threading.enumerate())


def test_a_run_that_is_refused_leaves_no_folder(lock_of, tmp_path):
    with pytest.raises(InputError), lock_of():
        raise InputError("no such data")
    assert not (tmp_path / "run").exists()


def test_a_second_run_is_refused_at_once_and_a_killed_one_blocks_nobody(lock_of, tmp_path, said):
    with holding_process(tmp_path / "run") as process:
        started = time.monotonic()
        with pytest.raises(InputError, match=rf"process {process.pid} on .*, since 20"):
            lock_of(lease=60.0).__enter__()
        process.send_signal(signal.SIGSTOP)  # stopped is not gone
        with pytest.raises(InputError, match=f"process {process.pid} on "):
            lock_of(lease=60.0).__enter__()
        process.kill()
        while process_start(process.pid) is not None:  # nobody has waited for it yet
            time.sleep(0.01)
        with lock_of(lease=60.0) as lock:
            lock.check(now=True)
        assert time.monotonic() - started < 20
    (line,) = said
    assert f"process {process.pid} on " in line and "stale" in line


def test_the_same_process_is_refused_a_second_lock(lock_of):
    with lock_of() as lock:
        with pytest.raises(InputError, match=f"process {os.getpid()} on .*another --workdir"):
            lock_of().__enter__()
        lock.check(now=True)


def test_a_process_id_that_was_given_to_another_process_is_no_holder(lock_of, tmp_path, said):
    leave_behind(tmp_path / "run", ticks=process_start(os.getpid()) - 1)
    with lock_of(lease=60.0):
        assert len(said) == 1 and "stale" in said[0]


def test_a_lock_from_elsewhere_is_stale_when_it_stands_still(lock_of, tmp_path, said):
    leave_behind(tmp_path / "run", host="node7", pid=4242, machine="another boot")
    started = time.monotonic()
    with lock_of() as lock:
        assert time.monotonic() - started >= LEASE
        lock.check(now=True)
    assert len(said) == 2
    assert "process 4242 on node7, since" in said[0] and f"{LEASE:.0f} s" in said[0]
    assert "process 4242 on node7, since" in said[1] and "stale" in said[1]


def test_a_lock_from_elsewhere_that_beats_is_respected(lock_of, tmp_path, monkeypatch):
    with lock_of(lease=0.6):
        monkeypatch.setattr("jaxformer.storage.lock.machine_id", lambda: "another machine")
        with pytest.raises(InputError, match=f"process {os.getpid()} on "):
            lock_of(lease=6.0).__enter__()


@pytest.mark.parametrize("content", [b"", b'{"host": "node7", "pi', b"[1]\n", b'{"beat": 1}'])
def test_a_lock_cut_short_by_a_kill_blocks_for_a_lease_only(lock_of, tmp_path, said, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_bytes(content)
    with lock_of() as lock:
        lock.check(now=True)
    assert f"{LEASE:.0f} s" in said[0] and "stale" in said[1]


def test_of_many_that_find_a_stale_lock_one_takes_it(lock_of, tmp_path):
    leave_behind(tmp_path / "run", ticks=1)
    barrier, done = threading.Barrier(8), threading.Event()
    held, refused = [], []

    def compete():
        barrier.wait()
        try:
            with lock_of(lease=60.0) as lock:
                held.append(lock)
                done.wait(30)
                lock.check(now=True)
        except InputError as error:
            refused.append(str(error))
            if len(refused) == 7:
                done.set()

    threads = [threading.Thread(target=compete) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(held) == 1
    assert len(refused) == 7 and all(f"process {os.getpid()} on " in text for text in refused)
    assert list((tmp_path / "run").iterdir()) == []


def test_a_holder_learns_that_its_folder_is_gone(lock_of, tmp_path):
    with lock_of() as lock:
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(InputError, match=f"{tmp_path}/run/lock .*deleted or moved"):
            lock.check(now=True)
    assert not (tmp_path / "run").exists()


def test_a_holder_learns_of_a_takeover_from_the_next_beat_and_leaves_the_lock(lock_of, tmp_path):
    with lock_of() as lock:
        leave_behind(tmp_path / "run", host="node8", pid=17)
        taken = (tmp_path / "run" / "lock").read_bytes()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                lock.check()
            except InputError as error:
                assert "taken over by process 17 on node8" in str(error)
                break
            time.sleep(0.01)
        else:
            pytest.fail("it was not noticed")
        time.sleep(LEASE / 2)
    assert (tmp_path / "run" / "lock").read_bytes() == taken


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/run .*Not a directory.*another --workdir"):
        WorkdirLock(tmp_path / "file" / "run").__enter__()
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o555)
    with without_privileges(), pytest.raises(InputError, match=r"written \(Permission denied\)"):
        WorkdirLock(folder).__enter__()


@contextlib.contextmanager
def without_privileges():
    """Root may write everywhere; as nobody it may not."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_processes_that_are_gone_have_no_start():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        while process_start(process.pid) is not None:  # in the end it is a corpse
            time.sleep(0.01)
    assert process_start(process.pid) is None
    assert process_start(os.getpid()) > 0
