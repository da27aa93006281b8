"""Log lines come when their interval is done, with the figures of their own steps."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import Config, TrainingConfig
from jaxformer.model_config import TransformerConfig
from jaxformer.training.flops import training_flops
from jaxformer.training.metrics import Progress
from jaxformer.training.recorder import Recorder

MODEL = TransformerConfig.preset("tiny", vocab_size=50, dtype="bfloat16")


class Lines(list):
    """A `MetricsWriter` that keeps what it is given."""

    def write(self, step, split, values):
        self.append((step, split, values))


def make_recorder(lines, *, device_kind="cpu", **training):
    """A recorder of a run on two devices over one pair of 5 and 4 tokens, logged every 2 steps."""
    device = types.SimpleNamespace(device_kind=device_kind)
    run = types.SimpleNamespace(
        config=Config(model=MODEL, training=TrainingConfig(num_steps=5, log_every=2, **training)),
        corpus=Pair(),
        plan=types.SimpleNamespace(steps_per_epoch=4),
        mesh=types.SimpleNamespace(devices=np.array([device, device])),
        schedule=lambda step: jnp.float32(0.1) * step,
        workdir=types.SimpleNamespace(checkpoints="runs/x/checkpoints"),
    )
    return Recorder(run, lines, Progress(0, 5))


class Pair:
    source_offsets, target_offsets = np.array([0, 5]), np.array([0, 4])

    def __len__(self):
        return 1


def step_sums(loss, tokens=10.0):
    sums = {"loss": loss, "nll": loss / 2, "correct": 4.0, "tokens": tokens, "gradient_norm": loss}
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
    recorder.settle(5)
    assert [(step, values["loss"]) for step, _, values in lines] == [(2, 2.0), (4, 6.0), (5, 9.0)]
    assert [v["learning_rate"] for *_, v in lines] == pytest.approx([0.1, 0.3, 0.4])
    recorder.settle(5)
    assert len(lines) == 3


def test_settling_within_an_interval_keeps_its_first_part():
    lines = Lines()
    recorder = make_recorder(lines)
    recorder.add(1, step_sums(10.0))
    recorder.settle(1)
    assert lines == []
    recorder.add(2, step_sums(30.0))
    recorder.settle(2)
    assert [(step, values["loss"]) for step, _, values in lines] == [(2, 2.0)]


def test_a_loss_that_is_not_finite_is_found_before_a_state_is_saved():
    recorder = make_recorder(Lines())
    recorder.add(1, step_sums(float("nan")))
    with pytest.raises(FloatingPointError, match="nan at step 1; .* lower optimizer.learning_rate"):
        recorder.settle(1)


def test_a_gradient_that_is_not_finite_spoils_the_update_of_a_finite_loss():
    recorder = make_recorder(Lines())
    recorder.add(1, step_sums(10.0) | {"gradient_norm": jnp.float32("inf")})
    with pytest.raises(FloatingPointError, match="loss is 10.0 and the gradient's norm inf"):
        recorder.settle(1)


@pytest.mark.parametrize(("r_drop_alpha", "passes"), [(0.0, 1), (5.0, 2)])
def test_utilisation_is_of_the_peak_of_all_devices(r_drop_alpha, passes, monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("jaxformer.training.metrics.time.monotonic", lambda: now[0])
    lines = Lines()
    recorder = make_recorder(lines, device_kind="NVIDIA L4", r_drop_alpha=r_drop_alpha)
    for step in (1, 2):
        recorder.add(step, step_sums(10.0, tokens=4e6))
    now[0] += 2.0
    recorder.settle(2)
    values = lines[0][2]
    speed = passes * training_flops(MODEL, [5], [4]) * 1e6  # 8e6 target tokens, 4 a pair, in 2 s
    assert values["model_flops_per_second"] == pytest.approx(speed)
    assert values["mfu"] == pytest.approx(speed / (2 * 121e12))
    assert f"  MFU {values['mfu']:.1%}  " in capsys.readouterr().out


def test_a_device_without_a_published_peak_has_no_utilisation():
    lines = Lines()
    recorder = make_recorder(lines)
    for step in (1, 2):
        recorder.add(step, step_sums(10.0))
    recorder.settle(2)
    assert "mfu" not in lines[0][2] and lines[0][2]["model_flops_per_second"] > 0.0
