"""One line and a status for what the user or the machine is to blame for."""

import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.files.outcome import exit_status


def raising(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (InputError("data.root=x"), 2, ["data.root=x"]),
        (FloatingPointError("NaN at step 3"), 2, ["NaN at step 3"]),
        (PermissionError(13, "Permission denied", "a/b"), 2, ["a/b", "Permission denied"]),
        (OSError(28, "No space left on device"), 2, ["No space left on device"]),
        (MemoryError(), 2, ["out of memory", "--max_length"]),
        (RuntimeError("RESOURCE_EXHAUSTED: 9 bytes\nmore"), 2, ["9 bytes", "--beam_size"]),
        (KeyboardInterrupt(), 130, []),
        (BrokenPipeError(32, "Broken pipe"), 141, []),
    ],
)
def test_statuses(error, status, words, capsys):
    assert exit_status(raising(error)) == status
    err = capsys.readouterr().err
    assert err.count("\n") == bool(words) and all(word in err for word in words)


def test_divergence_has_the_status_that_training_gives_it(capsys):
    assert exit_status(raising(FloatingPointError("NaN")), diverged=1) == 1


def test_numpy_out_of_memory_is_one(capsys):
    assert exit_status(lambda: np.zeros(2**55).size) == 2
    assert "Unable to allocate" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("x"), SystemExit(7)])
def test_errors_of_ours_are_not_hidden(error):
    with pytest.raises(type(error)):
        exit_status(raising(error))
