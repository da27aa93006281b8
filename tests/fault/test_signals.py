"""A signal in any phase of a run saves what was done, and the run goes on as if nothing was."""

import os
import signal

import pytest
from training_run import read_metrics, send_signal_after, small_config, write_corpus

from jaxformer.decoding.translator import Translator
from jaxformer.evaluation.translations import TranslationEvaluator
from jaxformer.storage import checkpoint
from jaxformer.storage.checkpoint import Checkpointer, list_steps
from jaxformer.training.loop import train
from jaxformer.training.validation import evaluate_held_out

pytestmark = pytest.mark.fault

STEPS, SAVE_EVERY, EVAL_EVERY = 9, 3, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory, compiled_programs):
    """A corpus, its cache and the run without signals."""
    folder = tmp_path_factory.mktemp("signals")
    write_corpus(folder / "corpus")
    return folder


@pytest.fixture
def config(folder, one_device):
    return small_config(
        folder / "corpus",
        folder / "cache",
        training__num_steps=STEPS,
        training__log_every=1,
        training__save_every=SAVE_EVERY,
        training__eval_every=EVAL_EVERY,
        training__eval_sentences=4,
        training__keep_checkpoints=9,
    )


@pytest.fixture
def whole(config, soak, folder):
    """Digest and train figures of the run without signals."""
    if not (folder / "whole" / "checkpoints" / str(STEPS)).exists():
        train(config, folder / "whole")
    return soak.digest(folder / "whole"), soak.logged_figures(folder / "whole")


def before(owner, name, number=signal.SIGTERM):
    """Make the first call of a function begin with a signal to this process."""
    function, calls = getattr(owner, name), []

    def signalled(*arguments, **options):
        calls.append(1)
        if len(calls) == 1:
            os.kill(os.getpid(), number)
        return function(*arguments, **options)

    return lambda patch: patch.setattr(owner, name, signalled)


# phase -> (what sends the signal there, the step at which the run stops)
PHASES = {
    "step": (lambda patch: send_signal_after(patch, 2, signal.SIGTERM), 2),
    "evaluation": (before(TranslationEvaluator, "mean_loss"), EVAL_EVERY),
    "decoding": (before(Translator, "_search"), EVAL_EVERY),
    "save": (before(Checkpointer, "save"), SAVE_EVERY + 1),
    "commit": (before(checkpoint, "write_manifest"), None),  # in another thread: any step
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_loses_no_step(config, whole, soak, tmp_path, phase):
    send, expected = PHASES[phase]
    with pytest.MonkeyPatch.context() as patch:
        send(patch)
        stopped = train(config, tmp_path)
    assert (stopped.reason, stopped.exit_status) == ("SIGTERM received", 143)
    assert stopped.evaluations == {}
    assert SAVE_EVERY <= stopped.step < STEPS if expected is None else stopped.step == expected
    assert list_steps(tmp_path / "checkpoints")[-1] == stopped.step
    assert not (tmp_path / "lock").exists()
    resumed = train(config, tmp_path)
    assert (resumed.step, resumed.exit_status) == (STEPS, 0)
    assert (soak.digest(tmp_path), soak.logged_figures(tmp_path)) == whole
    evaluated = [row["step"] for row in read_metrics(tmp_path, "validation")]
    assert evaluated == [4, 8, 9]


def test_a_signal_in_the_last_evaluation_leaves_at_once(config, whole, soak, tmp_path, monkeypatch):
    def signalled(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate_held_out(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxformer.training.loop.evaluate_held_out", signalled)
        with pytest.raises(SystemExit) as ended:
            train(config, tmp_path)
    assert ended.value.code == 143
    assert list_steps(tmp_path / "checkpoints")[-1] == STEPS
    assert not (tmp_path / "lock").exists()
    again = train(config, tmp_path)
    assert (again.step, again.exit_status, list(again.evaluations)) == (STEPS, 0, ["test"])
    assert soak.digest(tmp_path) == whole[0]


@pytest.mark.parametrize("compilations", [1, 2])
def test_a_signal_while_xla_compiles(soak, tiny_run, tmp_path, monkeypatch, compilations):
    """In set-up, where nothing is to be saved, and in the first step of a shape of batches."""
    cold = {"JAX_LOG_COMPILES": "1", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla")}
    monkeypatch.setattr(tiny_run, "environment", tiny_run.environment | cold)
    start = tiny_run.start(tmp_path / "run")

    def compiling():
        lines = [line for line in list(start.lines) if "Compiling jit(train_step)" in line]
        return len(lines) >= compilations

    assert start.wait_for(compiling), start.output
    start.process.send_signal(signal.SIGTERM)
    start.finish(143)
    assert "SIGTERM received" in start.output
    assert "Traceback" not in start.output
    saved = list_steps(tmp_path / "run" / "checkpoints")
    if compilations == 1:
        assert saved == [] and start.reached == 0
    else:
        assert f"saved: step {saved[-1]} in " in start.output
    again = tiny_run.start(tmp_path / "run")
    again.finish(0)
    assert (again.resumed or 0) == (saved[-1] if saved else 0)
    assert soak.digest(tmp_path / "run") == tiny_run.digest
