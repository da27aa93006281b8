"""A log that cannot be written costs a run nothing; a damaged metrics.jsonl neither."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_run import read_metrics, small_config, write_config_file, write_corpus

from jaxformer.storage.checkpoint import list_steps
from jaxformer.training.loop import train
from jaxformer.training.metrics import MetricsWriter

ROOT = Path(__file__).parents[2]
SHORT = {"training__num_steps": 4, "training__eval_every": 2, "training__log_every": 1}


def full_disk():
    return open("/dev/full", "w")


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


def ascii_only():
    return open(os.devnull, "w", encoding="ascii")


def closed():
    return None


@pytest.mark.parametrize("log", [full_disk, closed_pipe, ascii_only, closed])
def test_training_goes_on_without_its_log(log, tmp_path, one_device, compiled_programs, capsys):
    config = small_config(write_corpus(tmp_path / "corpus"), tmp_path / "cache", **SHORT)
    stream = log()
    with contextlib.redirect_stdout(stream):
        assert train(config, tmp_path / "run").exit_status == 0
    with contextlib.suppress(OSError):
        if stream is not None:
            stream.close()
    assert list_steps(tmp_path / "run" / "checkpoints")[-1] == 4
    assert [row["step"] for row in read_metrics(tmp_path / "run", "train")] == [1, 2, 3, 4]
    told = capsys.readouterr().err.count("standard output cannot be written")
    assert told == (0 if log is ascii_only else 1)


@pytest.mark.fault
@pytest.mark.parametrize("command", ["{} >/dev/full 2>{}", "{} 2>{} | head -1"])
def test_the_script_in_a_shell(command, tmp_path, compiled_programs):
    write_corpus(tmp_path / "corpus")
    config = write_config_file(
        tmp_path / "short.py", tmp_path / "corpus", tmp_path / "cache", **SHORT
    )
    script = f"{sys.executable} {ROOT}/train.py --config={config} --workdir={tmp_path / 'run'}"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.format(script, tmp_path / "errors")],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        timeout=300, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    errors = (tmp_path / "errors").read_text()
    assert ended.returncode == 0 and "Traceback" not in errors and "Exception" not in errors
    assert errors.count("standard output cannot be written") == 1
    assert list_steps(tmp_path / "run" / "checkpoints")[-1] == 4


def row(step, split="train"):
    return json.dumps({"step": step, "split": split}).encode()


def test_damaged_lines_are_set_aside_and_named(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    damaged = [b"\0" * 40, b'{"step": 3, "sp', b"\xff\xfe", b'{"step": "3", "split": "train"}', b""]
    good = [row(1), row(2), b"\0\0\0" + row(3)]
    path.write_bytes(b"\n".join([good[0], *damaged, *good[1:], row(4)[:9]]))
    MetricsWriter(path, 3).close()
    assert path.read_bytes() == b"".join(row(step) + b"\n" for step in (1, 2, 3))
    beside = path.with_name("metrics.jsonl.damaged")
    assert beside.read_bytes() == b"\n".join([*damaged, b""])
    out = capsys.readouterr().out
    assert str(path) in out and "2, 3, 4, 5, 6" in out and str(beside) in out


def test_lines_that_were_set_aside_before_stay(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.with_name("metrics.jsonl.damaged").write_bytes(b"older\n")
    path.write_bytes(b"newer\n" + row(1) + b"\n")
    MetricsWriter(path, 1).close()
    assert path.with_name("metrics.jsonl.damaged").read_bytes() == b"older\nnewer\n"


def test_a_good_file_has_nothing_beside_it(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(row(1) + b"\n")
    MetricsWriter(path, 1).close()
    assert os.listdir(tmp_path) == ["metrics.jsonl"] and capsys.readouterr().out == ""
