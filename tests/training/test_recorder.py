"""Log lines come when their interval is done, with the figures of their own steps."""

import json
import math
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import Config, TrainingConfig
from jaxformer.model_config import TransformerConfig
from jaxformer.models.flops import forward_flops
from jaxformer.tasks.translation import TranslationTask
from jaxformer.training.guards.spikes import Spike
from jaxformer.training.metrics import Progress
from jaxformer.training.recorder import Recorder

MODEL = TransformerConfig.preset("tiny", vocab_size=50, dtype="bfloat16")


class Lines(list):
    """A `MetricsWriter` that keeps what it is given."""

    def write(self, step, split, values):
        self.append((step, split, values))


def make_recorder(lines, memory=None, *, device_kind="cpu", **training):
    """A recorder of a run on two devices over one pair of 5 and 4 tokens, logged every 2 steps."""
    device = types.SimpleNamespace(device_kind=device_kind)
    config = Config(
        model=MODEL, training=TrainingConfig(**{"num_steps": 5, "log_every": 2} | training)
    )
    run = types.SimpleNamespace(
        config=config,
        objective=TranslationTask().objective(config, None),
        dataset=types.SimpleNamespace(corpus=Pair(), steps_per_epoch=4),
        mesh=types.SimpleNamespace(devices=np.array([device, device])),
        program=types.SimpleNamespace(schedule=lambda step: jnp.float32(0.1) * step),
        workdir=types.SimpleNamespace(checkpoints="runs/x/checkpoints"),
        is_finite=lambda state: state != "damaged",
    )
    return Recorder(run, lines, Progress(0, 5), memory)


class Pair:
    source_offsets, target_offsets = np.array([0, 5]), np.array([0, 4])

    def __len__(self):
        return 1


def step_sums(loss, tokens=10.0):
    sums = {"loss": loss, "nll": loss / 2, "correct": 4.0, "weight": tokens, "gradient_norm": loss}
    sums["skipped"] = 0.0 if math.isfinite(loss) else 1.0
    return {name: jnp.float32(value) for name, value in sums.items()}


def test_a_line_is_written_two_steps_late_with_its_own_figures():
    lines = Lines()
    recorder = make_recorder(lines)
    for step, loss in enumerate([10.0, 30.0, 50.0], 1):
        recorder.add(step, step_sums(loss))
    assert lines == []
    recorder.add(4, step_sums(70.0))
    ((step, split, values),) = lines
    assert (step, split) == (2, "train")
    assert (values["loss"], values["gradient_norm"], values["accuracy"]) == (2.0, 20.0, 0.4)
    assert values["learning_rate"] == pytest.approx(0.1) and values["epoch"] == 0.5


def test_settling_writes_all_that_has_ended_and_the_last_step_ends_an_interval():
    lines = Lines()
    recorder = make_recorder(lines)
    for step, loss in enumerate([10.0, 30.0, 50.0, 70.0, 90.0], 1):
        recorder.add(step, step_sums(loss))
    recorder.settle(5, "sound")
    assert [(step, values["loss"]) for step, _, values in lines] == [(2, 2.0), (4, 6.0), (5, 9.0)]
    assert [v["learning_rate"] for *_, v in lines] == pytest.approx([0.1, 0.3, 0.4])
    recorder.settle(5, "sound")
    assert len(lines) == 3


def test_settling_within_an_interval_keeps_its_first_part():
    lines = Lines()
    recorder = make_recorder(lines)
    recorder.add(1, step_sums(10.0))
    recorder.settle(1, "sound")
    assert lines == []
    recorder.add(2, step_sums(30.0))
    recorder.settle(2, "sound")
    assert [(step, values["loss"]) for step, _, values in lines] == [(2, 2.0)]


NAN = float("nan")


def test_skipped_updates_are_told_and_the_figures_are_those_of_the_others(capsys):
    lines = Lines()
    recorder = make_recorder(lines)
    for step, loss in enumerate([10.0, NAN, NAN, NAN, 50.0], 1):
        recorder.add(step, step_sums(loss))
    assert recorder.settle(5, "sound")
    assert [(step, split) for step, split, _ in lines] == [
        (2, "skipped"), (2, "train"), (3, "skipped"), (4, "skipped"), (4, "train"), (5, "train"),
    ]  # fmt: skip
    reason = "the loss is nan, the gradient's norm nan"
    assert lines[0][2] == {"batch": 1, "reason": reason}
    first, second, third = (values for _, split, values in lines if split == "train")
    assert (first["skipped"], first["loss"], first["gradient_norm"]) == (1, 1.0, 10.0)
    assert second["skipped"] == 2 and second["target_tokens_per_second"] == 0.0
    assert second["learning_rate"] == pytest.approx(0.3)
    assert not {"loss", "perplexity", "accuracy", "gradient_norm"} & second.keys()
    assert (third["skipped"], third["loss"]) == (0, 5.0)
    for _, _, values in lines:
        json.dumps(values, allow_nan=False)
    out = capsys.readouterr().out
    assert [f"step {n}  update skipped: {reason}\n" in out for n in range(1, 6)] == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_a_finite_loss_of_a_skipped_update_is_told_for_a_token():
    lines = Lines()
    recorder = make_recorder(lines)
    sums = {"gradient_norm": jnp.float32("inf"), "skipped": jnp.float32(1.0)}
    recorder.add(1, step_sums(25.0) | sums)
    recorder.settle(1, "sound")
    assert lines[0][2]["reason"] == "the loss is 2.5, the gradient's norm inf"


STOP = (
    r"3 updates in a row were skipped \(training.max_skipped_steps=3\), steps 3, 4, 5: the loss is "
    r"nan, .* in runs/x/checkpoints; lower optimizer.learning_rate"
)


def test_too_many_skipped_updates_in_a_row_end_training():
    recorder = make_recorder(Lines(), max_skipped_steps=3)
    for step, loss in enumerate([NAN, 10.0, NAN, NAN, NAN], 1):
        recorder.add(step, step_sums(loss))
    with pytest.raises(FloatingPointError, match=STOP):
        recorder.settle(5, "sound")


def test_a_resumed_run_goes_on_counting():
    first = make_recorder(Lines(), max_skipped_steps=3)
    for step in (3, 4):
        first.add(step, step_sums(NAN))
    first.settle(4, "sound")
    memory = json.loads(json.dumps(first.memory()))
    assert memory["skipped"] == [3, 4]
    second = make_recorder(Lines(), memory, max_skipped_steps=3)
    second.add(5, step_sums(NAN))
    with pytest.raises(FloatingPointError, match=STOP):
        second.settle(5, "sound")


def test_a_state_that_is_not_finite_is_not_to_be_saved():
    recorder = make_recorder(Lines())
    recorder.add(1, step_sums(10.0))
    with pytest.raises(FloatingPointError, match="parameters or moments of step 1 are not finite"):
        recorder.settle(1, "damaged")


SPIKING = dict(num_steps=20, log_every=1, save_every=2, eval_every=2, spike_factor=2.0)


def test_a_spike_is_waited_for_before_a_state_is_used_and_later_steps_are_forgotten():
    lines = Lines()
    recorder = make_recorder(lines, **SPIKING)
    for step, loss in enumerate([10.0] * 6 + [30.0, 11.0, 12.0], 1):
        assert recorder.spike is None
        recorder.add(step, step_sums(loss))
    assert recorder.spike == Spike(step=7, loss=3.0, usual=1.0, before=7, rollbacks=0)
    assert not recorder.settle(9, "damaged")
    recorder.rolled_back(6)
    assert recorder.settle(7, "sound") and recorder.memory()["spikes"]["restored"] == [6]
    assert [(step, split) for step, split, _ in lines] == [
        *((step, "train") for step in range(1, 8)), (7, "rollback"),
    ]  # fmt: skip
    assert lines[-1][2] == {"loss": 3.0, "usual_loss": 1.0, "checkpoint": 6}
    recorder.add(8, step_sums(10.0))
    assert recorder.settle(8, "sound") and recorder.memory()["spikes"]["restored"] == []


@pytest.mark.parametrize(("r_drop_alpha", "passes"), [(0.0, 1), (5.0, 2)])
def test_utilisation_is_of_the_peak_of_all_devices(r_drop_alpha, passes, monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("jaxformer.training.metrics.time.monotonic", lambda: now[0])
    lines = Lines()
    recorder = make_recorder(lines, device_kind="NVIDIA L4", r_drop_alpha=r_drop_alpha)
    for step in (1, 2):
        recorder.add(step, step_sums(10.0, tokens=4e6))
    now[0] += 2.0
    recorder.settle(2, "sound")
    values = lines[0][2]
    speed = (
        3.0 * passes * forward_flops(MODEL, [5], [4]).total * 1e6
    )  # 8e6 target tokens, 4 a pair, in 2 s
    assert values["model_flops_per_second"] == pytest.approx(speed)
    assert values["mfu"] == pytest.approx(speed / (2 * 121e12))
    assert f"  MFU {values['mfu']:.1%}  " in capsys.readouterr().out


def test_a_device_without_a_published_peak_has_no_utilisation():
    lines = Lines()
    recorder = make_recorder(lines)
    for step in (1, 2):
        recorder.add(step, step_sums(10.0))
    recorder.settle(2, "sound")
    assert "mfu" not in lines[0][2] and lines[0][2]["model_flops_per_second"] > 0.0
