"""Signals are taken note of, handlers are put back, and a second signal ends at once."""

import os
import signal
import threading

import pytest

from jaxformer.training.signals import StopSignals


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)]
)
def test_a_signal_is_kept_until_the_loop_asks(number, status):
    with StopSignals() as signals:
        assert (signals.received, signals.exit_status) == (None, 0)
        os.kill(os.getpid(), number)
        assert (signals.received, signals.exit_status) == (number, status)


def test_a_second_signal_ends_at_once():
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGINT)
        assert ended.value.code == 143 and signals.received == signal.SIGTERM


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in StopSignals.NUMBERS]
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in StopSignals.NUMBERS] == before


def test_another_thread_leaves_the_handlers_alone():
    seen = []

    def enter():
        with StopSignals() as signals:
            seen.extend([signal.getsignal(signal.SIGINT), signals.exit_status])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT), 0]
