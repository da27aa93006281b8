"""Two processes of four devices: they learn what one of eight learns, and end together."""

import hashlib
import re
import signal
import time

import jax
import numpy as np
import pytest
from training_run import read_metrics, write_config_file, write_corpus
from two_process import ROOT, Job

from jaxformer.decoding.translator import Translator, abstract_params
from jaxformer.models.transformer import Transformer
from jaxformer.storage.checkpoint import list_steps, load_params
from jaxformer.storage.workdir import Workdir

pytestmark = pytest.mark.fault
STEPS, SAVE_EVERY = 80, 20
WITHIN = 40.0  # seconds in which the loss of a process ends the others
FIGURES = ("BLEU", "chrF", "loss", "perplexity", "accuracy")
LOST = r"error: process {} \(\S+, pid {}\) is lost.* step [\d,]+ .*{}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("two_processes")


@pytest.fixture(scope="module")
def numbers(folder):
    """`train.py` on number words, without --workdir."""
    write_corpus(folder / "corpus")
    changes = dict(num_steps=STEPS, log_every=10, eval_every=STEPS, save_every=SAVE_EVERY)
    changes = {f"training__{name}": value for name, value in changes.items()}
    root, cache = folder / "corpus", folder / "cache"
    file = write_config_file(folder / "numbers.py", root, cache, **changes)
    return [ROOT / "train.py", f"--config={file}"]


def run(command, workdir, compiled, **settings):
    """Run a job to its end, which must be a good one; returns what each process printed."""
    with Job([*command, f"--workdir={workdir}"], workdir.parent, compiled, **settings) as job:
        assert set(job.wait()) == {0}, job.text(0) + job.text(-1)
        return [job.text(index) for index in range(len(job.processes))]


def checksum(workdir, step=STEPS):
    """SHA-256 of the parameters of a step."""
    abstract = abstract_params(Transformer(Workdir(workdir).load_config().model))
    leaves = jax.tree.leaves(load_params(workdir / "checkpoints" / str(step), abstract))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


@pytest.fixture(scope="module")
def whole(numbers, folder, compiled_programs):
    """The uninterrupted run of two processes."""
    workdir = folder / "whole" / "run"
    first, second = run(numbers, workdir, compiled_programs)
    assert re.search("devices +8 x cpu in 2 processes as data=8 fsdp=1 tensor=1", first)
    assert re.search(f"stopped at step {STEPS}: all {STEPS} ", first)
    assert "step " not in second and "done:" not in second
    return workdir


def go_on(numbers, workdir, compiled, whole):
    """The same command again: nothing of the interruption is left in the parameters."""
    step = list_steps(workdir / "checkpoints")[-1]
    first, _ = run(numbers, workdir, compiled)
    assert re.search(f"resuming .*step {step:,} in ", first)
    assert checksum(workdir) == checksum(whole)
    steps = [row["step"] for row in read_metrics(workdir, "train")]
    assert steps == list(range(10, STEPS + 1, 10))


def test_the_builtin_corpus_is_learnt_as_by_one_process(folder, compiled_programs):
    changes = dict(
        data__source="builtin", data__num_pairs=1000, data__max_length=64,
        tokenizer__vocab_size=500, training__num_steps=40, training__log_every=5,
        training__eval_every=40, training__eval_sentences=32, decoding__beam_size=1,
    )  # fmt: skip
    file = write_config_file(folder / "builtin.py", folder, folder / "cache", **changes)
    command = [ROOT / "train.py", f"--config={file}"]
    two, one = (folder / name / "run" for name in ("builtin two", "builtin one"))
    run(command, two, compiled_programs)
    run(command, one, compiled_programs, count=1, devices=8)
    curves = [
        np.array([row["loss"] for row in read_metrics(workdir, "train")]) for workdir in (two, one)
    ]
    assert len(curves[0]) == 8 and curves[1][-1] < curves[1][0] - 0.5
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-5)
    for split in ("validation", "test", "compositional"):
        scores = [
            [(row["step"], f"{row['bleu']:.2f}", f"{row['chrf']:.2f}") for row in rows]
            for rows in (read_metrics(workdir, split) for workdir in (two, one))
        ]
        assert scores[0] == scores[1] and scores[0]
    samples = [(workdir / "samples" / "step_40.tsv").read_text("utf-8") for workdir in (two, one)]
    assert samples[0] == samples[1]


def test_one_process_prepares_a_tfds_data_set_for_all(folder, compiled_programs):
    changes = dict(
        data__name="jaxformer_en_fr/small", data__source="tfds", data__max_length=64,
        tokenizer__vocab_size=400, training__num_steps=2, training__eval_every=2,
        training__eval_sentences=8, decoding__beam_size=1,
    )  # fmt: skip
    file = write_config_file(folder / "tfds.py", folder / "tfds", folder / "cache", **changes)
    command = [ROOT / "train.py", f"--config={file}"]
    first, second = run(command, folder / "tfds run" / "run", compiled_programs)
    assert first.count("preparing jaxformer_en_fr/small in ") == 1
    assert "preparing jaxformer_en_fr" not in second


def test_bleu_is_the_same_string_on_any_processes_and_mesh(whole, folder, compiled_programs):
    command = ["-m", "jaxformer", "evaluate", f"--workdir={whole}", "--split=test"]
    shown = []
    for count, devices, cut in ((2, 4, ["--fsdp=2", "--tensor=2"]), (1, 8, [])):
        with Job([*command, *cut], folder / f"evaluate {count}", compiled_programs, count=count,
                 devices=devices) as job:  # fmt: skip
            assert set(job.wait()) == {0}, job.text(0) + job.text(-1)
            lines = job.text(0).splitlines()  # those of JAX's own libraries are among them
            shown.append([line for line in lines if line.split(" ")[0] in FIGURES])
            assert count == 1 or "BLEU" not in job.text(1)
    assert shown[0] == shown[1] and len(shown[0]) == len(FIGURES)
    assert float(shown[0][0].split()[1]) > 1.0


def test_two_processes_translate_a_file(whole, folder, compiled_programs):
    source, output = folder / "corpus" / "test.en", folder / "translated.txt"
    command = ["-m", "jaxformer", "translate", f"--workdir={whole}"]
    files = [f"--input={source}", f"--output={output}"]
    with Job([*command, *files], folder / "translate", compiled_programs) as job:
        assert job.wait() == [0, 0], job.text(0) + job.text(1)
    alone = Translator.from_workdir(whole)(source.read_text("utf-8").split("\n")[:-1])
    assert output.read_text("utf-8").split("\n")[:-1] == alone and len(alone) == 16
    with Job(command, folder / "translate", compiled_programs) as job:
        assert job.wait() == [2, 2]
    assert re.search("--input=.*several processes", job.text(0) + job.text(1))


def test_sigterm_to_one_stops_both_at_the_same_step(numbers, whole, folder, compiled_programs):
    workdir = folder / "terminated" / "run"
    with Job([*numbers, f"--workdir={workdir}"], workdir.parent, compiled_programs) as job:
        job.wait_for("step 20/")
        job.signal(1, signal.SIGTERM)
        assert job.wait() == [143, 143], job.text(0) + job.text(1)
        text = job.text(0)
    stopped = int(re.search(r"stopped at step (\d+): .* received", text)[1])
    assert 20 <= stopped < STEPS and list_steps(workdir / "checkpoints")[-1] == stopped
    assert "the same command" in text
    go_on(numbers, workdir, compiled_programs, whole)


@pytest.mark.parametrize("killed", [0, 1])
def test_sigkill_of_one_ends_the_other_which_names_it(
    numbers, whole, folder, compiled_programs, killed
):
    workdir, other = folder / f"killed {killed}" / "run", 1 - killed
    with Job([*numbers, f"--workdir={workdir}"], workdir.parent, compiled_programs) as job:
        job.wait_for(f"step {SAVE_EVERY + 10}/")
        job.signal(killed, signal.SIGKILL)
        since = time.monotonic()
        assert job.wait(other) == [71], job.text(other)
        assert time.monotonic() - since < WITHIN
        pid = job.processes[killed].pid
        assert re.search(LOST.format(killed, pid, "connection"), job.text(other))
        assert "the same command" in job.text(other)
    go_on(numbers, workdir, compiled_programs, whole)


def test_a_stuck_process_ends_the_other_which_names_it(numbers, folder, compiled_programs):
    workdir = folder / "stuck" / "run"
    command = [*numbers, f"--workdir={workdir}"]
    with Job(command, workdir.parent, compiled_programs, peer_timeout=20) as job:
        job.wait_for("step 20/")
        job.signal(1, signal.SIGSTOP)
        since = time.monotonic()
        assert job.wait(0) == [71], job.text(0)
        assert time.monotonic() - since < WITHIN
        pid = job.processes[1].pid
        assert re.search(LOST.format(1, pid, "silent for 20 s"), job.text(0))
        job.signal(1, signal.SIGCONT)
        assert job.wait(1) == [71], job.text(1)


def test_bad_input_in_one_process_ends_both(numbers, folder, compiled_programs):
    workdir = folder / "unequal" / "run"
    command = [*numbers, f"--workdir={workdir}"]
    other = ["--config.training.num_steps=7"]
    with Job(command, workdir.parent, compiled_programs, last_only=other) as job:
        assert job.wait() == [2, 2]
    assert re.search("process 1 .*process 0 .*configuration", job.text(0))
    assert not list_steps(workdir / "checkpoints")
