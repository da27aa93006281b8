"""Signals are noted or end the process, all processes agree, and a second signal ends at once."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from jaxformer.training.guards.signals import StopSignals

STATUSES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)]

# What the main thread does is one call into C: Python's own handlers do not run until it returns.
BUSY = """
import ctypes
from jaxformer.training.guards.signals import StopSignals

with StopSignals() as signals, signals.noted():
    print("busy", flush=True)
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # the second time it waits for itself
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(("number", "status"), STATUSES)
def test_a_signal_is_noted_until_the_loop_asks(number, status):
    with StopSignals() as signals, signals.noted():
        assert (signals.received, signals.exit_status, signals.agreed(4)) == (None, 0, False)
        os.kill(os.getpid(), number)
        assert (signals.received, signals.exit_status, signals.agreed(5)) == (number, status, True)
        os.kill(os.getpid(), signal.SIGTERM)  # the same request, delivered twice
        assert (signals.received, signals.exit_status) == (number, status)


@pytest.mark.parametrize(("number", "status"), STATUSES)
def test_where_nothing_is_to_be_saved_a_signal_ends_the_process(number, status):
    with StopSignals() as signals:
        with signals.noted():
            pass
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)  # while everything is closed: no second exception
    assert ended.value.code == status


def test_a_second_signal_ends_at_once_whatever_the_main_thread_does():
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == "busy\n"
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
        assert process.poll() is None
        time.sleep(1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
        first, second = process.stderr.read().splitlines()
        assert "SIGINT" in first and "second signal" in second


LATE = """
import os, signal, time
from jaxformer.training.guards.signals import StopSignals

try:
    with StopSignals():
        os.kill(os.getpid(), signal.SIGUSR1)
except SystemExit:
    os.kill(os.getpid(), signal.SIGUSR1)
    print("the same request is ignored", flush=True)
    time.sleep(1.1)
    os.kill(os.getpid(), signal.SIGTERM)
    print("a second one is not")
"""


def test_a_signal_while_the_process_ends_keeps_the_status_of_the_first():
    ended = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (143, "the same request is ignored\n")


def test_all_processes_stop_when_one_is_asked_to():
    asked = []

    def any_process(flag, step):
        asked.append((flag, step))
        return step >= 7  # another process has received a signal

    signals = StopSignals(any_process)
    assert [signals.agreed(step) for step in (6, 7)] == [False, True]
    assert (signals.received, signals.stopped, signals.exit_status) == (None, True, 143)
    assert asked == [(False, 6), (False, 7), (False, 7)]


def test_time_that_is_over_is_no_signal():
    signals = StopSignals()
    assert not signals.agreed(1)
    assert signals.agreed(2, over=True)
    assert (signals.stopped, signals.exit_status) == (False, 0)


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in StopSignals.NUMBERS]
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in StopSignals.NUMBERS] == before
    assert signal.set_wakeup_fd(wakeup) == wakeup
    for thread in threading.enumerate():
        if thread.name == "signals":
            thread.join(20)
            assert not thread.is_alive()


def test_another_thread_leaves_the_handlers_alone():
    seen = []

    def enter():
        with StopSignals() as signals:
            seen.extend([signal.getsignal(signal.SIGINT), signals.exit_status])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT), 0]
