"""train.py: flags to a configuration and a workdir; Ctrl-C, and the same command again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from saved_states import ranked_by
from training_run import (
    call_train_script,
    number_pairs,
    read_metrics,
    small_config,
    write_config_file,
    write_pairs,
)

from jaxformer.config import Config
from jaxformer.decoding.translator import abstract_params
from jaxformer.models.transformer import Transformer
from jaxformer.storage.checkpoint import list_steps, load_params, resolve_checkpoint
from jaxformer.storage.workdir import Workdir

ROOT = Path(__file__).parent.parent


class Ended:
    """What `train` returns, as far as train.py looks."""

    exit_status = 130


@pytest.fixture
def started(monkeypatch):
    """The (config, workdir) that train.py hands to the training loop."""
    calls = []
    monkeypatch.setattr("jaxformer.training.loop.train", lambda *a, **_: calls.append(a) or Ended)
    return calls


def test_without_flags_it_trains_the_pocket_run(started, monkeypatch):
    assert call_train_script(monkeypatch) == 130
    ((config, workdir),) = started
    assert workdir == Path("runs/pocket")
    assert config.data.source == "builtin" and config.model.d_model == 128
    assert type(config) is Config


def test_flags_reach_the_configuration(started, monkeypatch, tmp_path):
    file = write_config_file(tmp_path / "numbers.py", "text", "cache")
    status = call_train_script(
        monkeypatch, f"--config={file}", "--config.model.d_model=48", "--config.seed", "9",
        "--config.optimizer.learning_rate=1", "--config.tokenizer.joint=false",
        "--config.data.name=a=b",
    )  # fmt: skip
    ((config, workdir),) = started
    assert (status, workdir) == (130, Path("runs/numbers"))
    assert (config.model.d_model, config.seed, config.data.name) == (48, 9, "a=b")
    assert config.optimizer.learning_rate == 1.0 and config.tokenizer.joint is False
    plain = small_config("text", "cache")
    assert config.training == plain.training and config.mesh == plain.mesh


def test_a_named_workdir(started, monkeypatch, tmp_path):
    call_train_script(monkeypatch, f"--workdir={tmp_path / 'here'}")
    assert Path(started[0][1]) == tmp_path / "here"


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [([], 0), (["--profile"], 5), (["--profile", "--config.training.profile_steps=3"], 3)],
)
def test_steps_to_profile(started, monkeypatch, arguments, steps):
    call_train_script(monkeypatch, *arguments)
    assert started[0][0].training.profile_steps == steps


def test_steps_to_profile_of_a_config_file_that_leaves_sections_out(started, monkeypatch, tmp_path):
    file = tmp_path / "sparse.py"
    file.write_text(
        "from ml_collections import ConfigDict\ndef get_config(): return ConfigDict({'seed': 3})"
    )
    call_train_script(monkeypatch, f"--config={file}", "--profile")
    config = started[0][0]
    assert (config.seed, config.training.profile_steps) == (3, 5)


def test_ctrl_c_before_the_first_step_is_no_traceback(monkeypatch):
    def interrupted(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxformer.training.loop.train", interrupted)
    assert call_train_script(monkeypatch) == 130


@pytest.fixture(scope="module")
def command(tmp_path_factory, small_run):
    """A train.py command line without --workdir: 160 steps, long enough to interrupt."""
    folder = tmp_path_factory.mktemp("script")
    write_pairs(folder / "corpus", "train", number_pairs(400, 1))
    write_pairs(folder / "corpus", "valid", number_pairs(1, 2))
    file = write_config_file(
        folder / "numbers.py",
        folder / "corpus",
        small_run.config.data.cache_dir,
        training__num_steps=160,
        training__log_every=5,
        training__save_every=50,
        training__eval_every=1000,
        data__tokens_per_batch=4000,
    )
    return [sys.executable, str(ROOT / "train.py"), f"--config={file}"]


def stored_params(workdir):
    abstract = abstract_params(Transformer(Workdir(workdir).load_config().model))
    return load_params(
        resolve_checkpoint(workdir / "checkpoints", "latest", ranked_by("bleu")), abstract
    )


def test_ctrl_c_and_the_same_command_again(command, tmp_path, compiled_programs):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "tests")}
    environment.pop("XLA_FLAGS", None)
    environment.pop("PJRT_NPROC", None)
    options = dict(env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    interrupted = [*command, f"--workdir={tmp_path / 'interrupted'}"]

    with subprocess.Popen(interrupted, **options) as process:
        for line in process.stdout:
            if line.startswith("step 20/160"):
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert "SIGINT received" in rest and "the same command" in rest
    assert "Traceback" not in errors
    (stopped,) = {
        step for step in list_steps(tmp_path / "interrupted" / "checkpoints") if step % 50
    }
    assert 20 <= stopped < 160

    again = subprocess.run(interrupted, **options, timeout=300, check=False)
    assert again.returncode == 0, again.stderr
    assert f"resuming from the checkpoint of step {stopped:,} in " in again.stdout
    assert "stopped at step 160: all 160 steps are done" in again.stdout

    whole = [*command, f"--workdir={tmp_path / 'whole'}"]
    subprocess.run(whole, **options, timeout=300, check=True)
    params = [stored_params(tmp_path / name) for name in ("interrupted", "whole")]
    jax.tree.map(np.testing.assert_array_equal, *params)
    for name in ("interrupted", "whole"):
        steps = [row["step"] for row in read_metrics(tmp_path / name, "train")]
        assert steps == list(range(5, 161, 5))


def test_a_mistake_ends_the_process_with_status_2():
    ended = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "--config.model.d_modl=5", "--workdri=x"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "error: --config.model.d_modl does not exist; nearest: --config.model.d_model\n"
    )
