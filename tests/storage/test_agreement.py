"""What the first process finds is what all processes do."""

import json

import pytest

from jaxformer.errors import InputError
from jaxformer.storage import agreement
from jaxformer.storage.agreement import ask_first_process


def refuse():
    raise InputError("a bit is wrong in 300")


def test_alone_it_is_a_plain_call():
    assert ask_first_process(lambda: 300) == 300 and ask_first_process(lambda: None) is None
    with pytest.raises(InputError, match="a bit is wrong in 300"):
        ask_first_process(refuse)


@pytest.fixture
def two_processes(monkeypatch):
    """Makes this process number `index` of two; `sent` is what the first one has said."""
    sent = []

    def become(index):
        def gather(value):
            if index == 0:
                sent.append(json.loads(json.dumps(value)))
            return [sent[-1], value]

        monkeypatch.setattr(agreement, "gather", gather)
        monkeypatch.setattr(agreement, "is_first_process", lambda: index == 0)

    return become


@pytest.mark.parametrize("answer", [0, 300, None])
def test_the_others_take_the_answer_and_do_not_look(two_processes, answer):
    two_processes(0)
    assert ask_first_process(lambda: answer) == answer
    two_processes(1)
    assert ask_first_process(lambda: 1 / 0) == answer


def test_all_are_refused_for_the_same_reason(two_processes):
    two_processes(0)
    with pytest.raises(InputError, match="a bit is wrong in 300"):
        ask_first_process(refuse)
    two_processes(1)
    with pytest.raises(InputError, match="a bit is wrong in 300"):
        ask_first_process(lambda: 1 / 0)
