"""The trace of a few steps: its files, its markers, and when it is made."""

import gzip
import json

import jax
import jax.numpy as jnp

from jaxformer.training.profiling import WARM_UP_STEPS, StepTrace


def train_steps(folder, count, *, first, steps):
    """Run small steps under a `StepTrace`; returns the value after the last."""
    double = jax.jit(lambda x: x * 2.0)
    value = jnp.float32(1.0)
    with StepTrace(folder, first, count) as trace:
        for step in range(first, first + steps):
            value = trace.run(step, double, value)
    return float(value)


def markers(folder):
    """`step_num` of each marker `train` in the one trace of a folder."""
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    events = [
        dict(event.stats)
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    ]
    return [stats["step_num"] for stats in events]


def test_the_steps_after_the_warm_up_are_traced(tmp_path, capsys):
    assert train_steps(tmp_path, 3, first=100, steps=16) == 2.0**16
    assert WARM_UP_STEPS == 10
    assert markers(tmp_path) == [110, 111, 112]
    (perfetto,) = tmp_path.glob("plugins/profile/*/perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(perfetto.read_bytes()))["traceEvents"]
    out = capsys.readouterr().out
    assert out.startswith(f"profile   {perfetto.parent}\n")
    assert f"xprof --logdir={tmp_path}" in out


def test_a_run_that_ends_within_the_trace_keeps_what_there_is(tmp_path):
    train_steps(tmp_path, 5, first=0, steps=12)
    assert markers(tmp_path) == [10, 11]


def test_a_run_that_goes_back_within_the_trace_has_one(tmp_path):
    with StepTrace(tmp_path, 0, 3) as trace:
        for step in (*range(12), 10, 11, 12, 13):  # back to the checkpoint of step 10
            trace.run(step, jax.jit(lambda x: x + 1.0), jnp.float32(1.0))
    assert markers(tmp_path) == [10, 11, 10, 11, 12]


def test_a_run_that_ends_before_it_says_so(tmp_path, capsys):
    train_steps(tmp_path, 5, first=7, steps=10)
    assert capsys.readouterr().out == "profile   none: this start ended before step 17\n"
    assert list(tmp_path.iterdir()) == []


def test_no_trace_unless_asked_for(tmp_path, capsys):
    train_steps(tmp_path, 0, first=0, steps=12)
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""
