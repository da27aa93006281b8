"""Processes agree at the same call, and one that dies, hangs or fails is named to the others."""

import contextlib
import json
import random
import socket
import threading
import time

import pytest

from jaxformer.runtime import connections
from jaxformer.runtime.peers import LOST_STATUS, Peers


def join(count, timeout=30.0):
    """Peers of `count` processes, here of one, and the (message, status) that would end each."""
    peers, ends, published = [None] * count, [[] for _ in range(count)], []

    def settings(index):
        return {"timeout": timeout, "end": lambda *how: ends[index].append(how)}

    def listen():
        peers[0] = Peers.listen(count, "127.0.0.1", published.append, **settings(0))

    def connect(index):
        while not published:
            time.sleep(0.01)
        peers[index] = Peers.connect(index, count, published[0], **settings(index))

    together(listen, *(lambda index=index: connect(index) for index in range(1, count)))
    return peers, ends


def together(*functions):
    """What the functions return, each run in a thread of its own; the first error is raised."""
    results, errors = [None] * len(functions), []

    def run(index, function):
        try:
            results[index] = function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return results


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def part(peers):
    together(*(peer.leave for peer in peers))


@pytest.mark.parametrize("raising", [0, 2])
def test_one_flag_stops_all_at_the_same_call(raising):
    peers, ends = join(3)

    def calls_until_stop(index):
        draw = random.Random(index)
        for call in range(1, 2000):
            time.sleep(draw.random() * 0.01)
            if peers[index].any_process(index == raising and call >= 20, call):
                return call

    stopped = together(*(lambda index=index: calls_until_stop(index) for index in range(3)))
    assert len(set(stopped)) == 1 and 21 <= stopped[0] < 2000
    again = together(*(lambda i=i: peers[i].any_process(i == raising, 0) for i in range(3)))
    assert again == [True] * 3
    nobody = together(*(lambda i=i: peers[i].any_process(False, 0) for i in range(3)))
    assert nobody == [False] * 3
    part(peers)
    assert ends == [[], [], []]


def test_without_a_flag_a_call_asks_nobody():
    peers, _ = join(2)
    started = time.monotonic()
    assert not any(peers[0].any_process(False, step) for step in range(10_000))
    assert time.monotonic() - started < 2.0
    part(peers)


def test_gather_gives_every_process_all_values_in_order():
    peers, _ = join(3)
    for values in (["a", "b", "c"], [None, {"x": 1}, 2.5]):
        found = together(*(lambda i=i, v=values: peers[i].gather(v[i]) for i in range(3)))
        assert found == [values] * 3
    part(peers)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_dies_is_named_to_all_others(lost):
    peers, ends = join(3)
    together(*(lambda peer=peer: peer.any_process(False, 1234) for peer in peers))
    time.sleep(1.5)  # a beat
    peers[lost]._closing = True  # its own thread has died with it
    for line in peers[lost]._lines.values():
        line.connection.shutdown(2)
    others = [index for index in range(3) if index != lost]
    wait_for(lambda: all(ends[index] for index in others))
    for index in others:
        message, status = ends[index][0]
        assert message.startswith(f"error: process {lost} (") and ", pid " in message
        assert "connection" in message and status == LOST_STATUS == 71
        assert "step 1,234 " in message and "the same command" in message


@pytest.mark.parametrize("silent", [0, 1])
def test_a_process_that_falls_silent_is_named(monkeypatch, silent):
    peers, ends = join(3, timeout=3.0)
    monkeypatch.setattr(peers[silent], "_broadcast", lambda message: None)
    others = [index for index in range(3) if index != silent]
    wait_for(lambda: all(ends[index] for index in others))
    for index in others:
        message, status = ends[index][0]
        assert message.startswith(f"error: process {silent} (") and status == 71
        assert "silent for 3 s" in message


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_tells_the_others_why_and_how(failing):
    peers, ends = join(3)
    peers[failing].abandon(2, "InputError: no such file")
    others = [index for index in range(3) if index != failing]
    wait_for(lambda: all(ends[index] for index in others))
    for index in others:
        message, status = ends[index][0]
        assert message.startswith(f"error: process {failing} (") and status == 2
        assert message.endswith("InputError: no such file")


def test_whoever_parts_after_the_others_is_not_lost():
    peers, ends = join(3)
    part(peers)
    for peer in peers:
        peer._thread.join(10)
        assert not peer._thread.is_alive()
        for line in peer._lines.values():
            line.connection.close()
    assert ends == [[], [], []]


def test_processes_that_do_not_come_are_named(monkeypatch):
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 0.5)
    with pytest.raises(TimeoutError, match="process 1, 2 .*process 0 on 127.0.0.1 .* 0.5 s"):
        Peers.listen(3, "127.0.0.1", lambda text: None, timeout=30.0)


# What strangers send; whoever sends half a line keeps the connection open, as silent ones do.
STRANGERS = {
    "silence": b"",
    "half a line": b'{"token": "',
    "HTTP": b"GET / HTTP/1.0\r\n\r\n",
    "another job": b'{"token": "guess", "index": 1, "name": "process 1"}\n',
    "no object": b"[]\n",
    "no text": b"\xff\xfe\n",
    "no character": b'{"token": "\\ud800"}\n',
    "deep": b"[" * 60_000 + b"\n",
    "endless": b"x" * 200_000,
}


def strangers_at(address, texts):
    """Connections to where process 0 listens, each of which has sent its text."""
    port, opened = json.loads(address)["port"], []
    for text in texts:
        opened.append(socket.create_connection(("127.0.0.1", port), 5))
        with contextlib.suppress(ConnectionError):  # sent away in the middle of it
            opened[-1].sendall(text)
    return opened


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_stranger_keeps_nobody_waiting(kind):
    published, opened, ends = [], [], []
    settings = {"timeout": 30.0, "end": lambda *how: ends.append(how)}

    def connect():
        wait_for(lambda: published)
        opened.extend(strangers_at(published[0], [STRANGERS[kind]] * 3))
        time.sleep(0.2)  # process 0 has seen them
        started = time.monotonic()
        peer = Peers.connect(1, 2, published[0], **settings)
        assert time.monotonic() - started < 10.0
        return peer

    def listen():
        return Peers.listen(2, "127.0.0.1", published.append, **settings)

    peers = together(listen, connect)
    assert together(*(lambda i=i: peers[i].gather(i) for i in range(2))) == [[0, 1]] * 2
    part(peers)
    for stranger in opened:  # process 0 has closed its end
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(1) == b""
        stranger.close()
    assert ends == []


def test_strangers_do_not_put_off_the_end_of_waiting(monkeypatch):
    monkeypatch.setattr(connections, "CONNECT_SECONDS", 1.0)
    published = []

    def come():
        wait_for(lambda: published)
        for _ in range(8):  # each well before the wait is over
            try:
                strangers_at(published[0], [b"?\n"])[0].close()
            except ConnectionError:
                return
            time.sleep(0.3)
        raise AssertionError("process 0 still waits")

    def listen():
        with pytest.raises(TimeoutError, match="process 1 .*process 0"):
            Peers.listen(2, "127.0.0.1", published.append, timeout=30.0)

    together(listen, come)
