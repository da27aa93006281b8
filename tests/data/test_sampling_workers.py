"""Workers answer as the sampler itself does, and their end is always reported or wanted."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from jaxformer.config import DataConfig, TokenizerConfig
from jaxformer.data.corpus import CorpusReport, TokenizedCorpus, encode_lines
from jaxformer.data.loader import BatchLoader
from jaxformer.data.pair_dataset import (
    PairDataset,
    make_batch,
    make_plan,
    stored_sentences,
)
from jaxformer.data.sampling_workers import SamplingWorkers, pack, unpack
from jaxformer.data.subword_sampling import SubwordSampler
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.parallel.shares import BatchShare

PAD = 0
LINES = [f"the {a} sees {b}\u2581 {a}s" for a in ("house", "garden") for b in range(60)]


def setting(batching="packed", *, joint=True):
    train = lambda lines: train_tokenizer(  # noqa: E731
        lines, TokenizerConfig(vocab_size=300), progress=False
    )
    source = train(LINES)
    tokenizers = source, source if joint else train([line.upper() for line in LINES])
    sides = {}
    for name, tokenizer in zip(("source", "target"), tokenizers, strict=True):
        ids, lengths = encode_lines(tokenizer, LINES)
        sides[f"{name}_ids"], sides[f"{name}_offsets"] = ids, np.append(0, np.cumsum(lengths))
    report = CorpusReport(read=len(LINES), kept=len(LINES))
    corpus = TokenizedCorpus(**sides, original_index=np.arange(len(LINES)), report=report)
    config = DataConfig(batching=batching, tokens_per_batch=512, max_length=128)
    sampler = SubwordSampler(corpus, tokenizers, 0.2, config, 0)
    plan = make_plan(corpus, config, seed=0, row_multiple=2, shuffle=True, sampler=sampler)
    return corpus, plan, sampler


def tasks_of(setting, step):
    corpus, plan, sampler = setting
    layout = plan.layout(step, slice(None))
    return sampler.tasks(layout, stored_sentences(corpus, layout.pairs), step)


@pytest.fixture(scope="module")
def shared():
    return setting()


def test_messages_keep_arrays_of_any_length():
    arrays = [np.array(values, np.int64) for values in ([3, -1], [], [2**62], [], [])]
    found = unpack(pack(arrays))
    assert [array.tolist() for array in found] == [[3, -1], [], [2**62], [], []]
    assert unpack(pack([])) == []


@pytest.mark.parametrize("joint", [True, False])
def test_workers_answer_like_the_sampler(joint):
    current = setting(joint=joint)
    workers = SamplingWorkers(current[2], 2)
    try:
        for step in range(3):
            tasks = tasks_of(current, step)
            for found, expected in zip(workers.run(tasks), current[2].run(tasks), strict=True):
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(one, other)
    finally:
        workers.close()


def test_signals_to_the_job_do_not_end_workers(shared):
    workers = SamplingWorkers(shared[2], 1)
    try:
        workers.run(tasks_of(shared, 0))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(workers.process_ids[0], number)
        assert len(workers.run(tasks_of(shared, 1))) == 2
        assert os.getpgid(workers.process_ids[0]) != os.getpgid(0)  # Ctrl-C does not get there
    finally:
        workers.close()


def test_an_error_in_a_worker_is_quoted(shared):
    workers = SamplingWorkers(shared[2], 1)
    try:
        task = tasks_of(shared, 0)[0]
        with pytest.raises(RuntimeError, match=r"sampling worker \d+ failed:\nTraceback.*\n(.*\n)*"
                           "IndexError: list index out of range"):  # fmt: skip
            workers.run([task._replace(ids=task.ids + 100_000)])
        with pytest.raises(RuntimeError, match="ended with signal SIGKILL"):
            workers.run([task])
    finally:
        workers.close()


def test_a_worker_that_dies_is_reported_by_the_loader(shared):
    corpus, plan, sampler = shared
    loader = BatchLoader(PairDataset(corpus, plan, PAD, sampler=sampler, workers=2))
    next(loader)
    os.kill(loader._dataset._workers.process_ids[1], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"sampling worker \d+ ended with signal SIGKILL"):
        for _ in range(50):
            next(loader)
    loader.close()


def test_a_worker_that_cannot_start_is_reported(shared, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match=r"sampling worker \d+ ended with status 1"):
        SamplingWorkers(shared[2], 1).run(tasks_of(shared, 0))


def test_close_ends_the_processes(shared):
    workers = SamplingWorkers(shared[2], 2)
    workers.run(tasks_of(shared, 0))
    pids = workers.process_ids
    workers.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_batches_are_the_same_with_0_1_and_2_workers_and_after_a_restart(batching):
    corpus, plan, sampler = setting(batching)
    steps = plan.steps_per_epoch + 2
    expected = [make_batch(corpus, plan, step, slice(None), PAD, sampler) for step in range(steps)]
    for workers, start, parts in ((0, 0, 1), (1, 0, 1), (2, 0, 1), (2, 3, 2), (0, 1, 2)):
        loaders = [
            BatchLoader(
                PairDataset(corpus, plan, PAD, sampler=sampler, workers=workers),
                BatchShare(parts, ((part, part + 1),)), start_step=start,
            )
            for part in range(parts)
        ]  # fmt: skip
        for step in range(start, steps):
            batches = [next(loader) for loader in loaders]
            assert batches[0].keys() == expected[step].keys()
            for name in expected[step]:
                joined = np.concatenate([batch[name] for batch in batches])
                np.testing.assert_array_equal(joined, expected[step][name])
        for loader in loaders:
            loader.close()


PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from test_sampling_workers import setting, tasks_of, SamplingWorkers
current = setting()
workers = SamplingWorkers(current[2], 2)
workers.run(tasks_of(current, 0)); workers.run(tasks_of(current, 1))
print("ready", flush=True)
time.sleep(600)
"""


def test_workers_end_with_a_parent_that_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(tests=os.path.dirname(__file__))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert parent.stdout.readline() == b"ready\n"
    parent.kill()
    # The workers hold the same stderr: it ends when the last of them has ended.
    assert parent.communicate(timeout=30) == (b"", b"")
    assert parent.returncode == -signal.SIGKILL
