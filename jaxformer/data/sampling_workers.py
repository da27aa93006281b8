"""Processes that sample segmentations for the training process.

They hold only the tokenizers: no corpus, no plan, no JAX. Tasks and answers are integer arrays sent
over two pipes, so nothing is pickled. A worker ends when its pipe closes, however its parent ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from jaxformer.data.segmenters import Segmenter
from jaxformer.data.subword_sampling import (
    SampledSentences,
    SamplingTask,
    SubwordSampler,
    make_segmenters,
    sample_sentences,
)
from jaxformer.data.tokenizers import Tokenizer

MODELS = struct.Struct("<dqq")  # rate, bytes of the source's model and of the target's (0: shared)
SIZE = struct.Struct("<q")  # bytes of the message that follows; negative: an error's text
EXIT_SECONDS = 10.0  # that a worker with a broken pipe gets to exit


class SamplingWorkers:
    """Samples tasks in separate processes; up to `count` threads may call `run` at once.

    Args:
      sampler: gives the tokenizers and the rate.
      count: number of processes.

    Raises:
      RuntimeError: a worker did not start.
    """

    def __init__(self, sampler: SubwordSampler, count: int):
        source, target = (tokenizer.model for tokenizer in sampler.tokenizers)
        if source == target:
            target = b""
        self._processes = [start_worker() for _ in range(count)]
        self._free: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        try:
            for process in self._processes:
                with death_reported(process):
                    process.stdin.write(MODELS.pack(sampler.rate, len(source), len(target)))
                    process.stdin.write(source + target)
                    process.stdin.flush()
                self._free.put(process)
        except BaseException:
            self.close()
            raise

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid for process in self._processes]

    def run(self, tasks: list[SamplingTask]) -> list[SampledSentences]:
        """Sample all tasks in the next free process.

        Raises:
          RuntimeError: the worker ended, or raised an error, which is quoted.
        """
        process = self._free.get()
        try:
            return ask(process, tasks)
        except BaseException:
            process.kill()  # its pipe may hold half an answer
            raise
        finally:
            self._free.put(process)

    def close(self) -> None:
        """Kill the processes; they hold nothing that could be lost."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def start_worker() -> subprocess.Popen:
    """Start a fresh interpreter that runs `serve`, with the import path of this one.

    It has its own process group, so that Ctrl-C in a terminal reaches only the parent.
    """
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "jaxformer.data.sampling_workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        process_group=0,
    )


def ask(process: subprocess.Popen, tasks: list[SamplingTask]) -> list[SampledSentences]:
    """Send tasks to a worker and wait for its answer."""
    with death_reported(process):
        send(process.stdin, pack([part for task in tasks for part in task_arrays(task)]))
        size = SIZE.unpack(read_exactly(process.stdout, SIZE.size))[0]
        answer = read_exactly(process.stdout, abs(size))
    if size < 0:
        raise RuntimeError(f"sampling worker {process.pid} failed:\n{answer.decode()}")
    arrays = unpack(answer)
    return [SampledSentences(*arrays[at : at + 3]) for at in range(0, len(arrays), 3)]


@contextlib.contextmanager
def death_reported(process: subprocess.Popen) -> Iterator[None]:
    """Turn a broken pipe into a `RuntimeError` that says how the worker ended."""
    try:
        yield
    except (EOFError, BrokenPipeError) as error:
        try:
            status = process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        raise RuntimeError(
            f"sampling worker {process.pid} ended with {how}; see its error on stderr (SIGKILL "
            "often means that memory ran out), or set data.workers=0 to use no workers"
        ) from error


def task_arrays(task: SamplingTask) -> tuple[np.ndarray, ...]:
    """A task as six int64 arrays; the first holds the side and the width."""
    return np.array(task[:2], np.int64), *task[2:]


def pack(arrays: list[np.ndarray]) -> bytes:
    """Encode int64 arrays as one message: their number, their lengths, their values."""
    head = np.array([len(arrays), *map(len, arrays)], np.int64)
    return b"".join(array.astype(np.int64, copy=False).tobytes() for array in (head, *arrays))


def unpack(message: bytes) -> list[np.ndarray]:
    """The inverse of `pack`."""
    values = np.frombuffer(message, np.int64)
    count = int(values[0])
    bounds = count + 1 + np.cumsum([0, *values[1 : count + 1]])
    return [values[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]


def send(stream: BinaryIO, message: bytes, *, error: bool = False) -> None:
    """Write a message, preceded by its size.

    Args:
      stream: the pipe.
      message: the bytes to send.
      error: whether the message is the text of an error.
    """
    stream.write(SIZE.pack(-len(message) if error else len(message)) + message)
    stream.flush()


def read_exactly(stream: BinaryIO, size: int) -> bytes:
    """The next `size` bytes; raises `EOFError` if the other side closed the pipe early."""
    data = stream.read(size)
    if len(data) < size:
        raise EOFError(f"{len(data)} of {size} bytes")
    return data


def serve() -> None:
    """Run a worker: read the models, then answer every message until the pipe closes."""
    # The parent decides when to end: a signal sent to the whole job must not break its last steps.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    messages, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    try:
        rate, *sizes = MODELS.unpack(read_exactly(messages, MODELS.size))
        models = [read_exactly(messages, size) for size in sizes]
        source = Tokenizer(models[0])
        segmenters = make_segmenters(source, Tokenizer(models[1]) if models[1] else source)
        while True:
            arrays = unpack(
                read_exactly(messages, SIZE.unpack(read_exactly(messages, SIZE.size))[0])
            )
            try:
                parts = answer_parts(segmenters, rate, arrays)
            except Exception:
                send(answers, traceback.format_exc().encode(), error=True)
            else:
                send(answers, pack(parts))
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent has ended; there is nobody to flush to


def answer_parts(
    segmenters: tuple[Segmenter, Segmenter], rate: float, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    """Sample the tasks of one message.

    Args:
      segmenters: of the source and the target.
      rate: tokenizer.sampling_rate.
      arrays: six per task, as `task_arrays` makes them.

    Returns:
      Three int64 arrays per task, those of `SampledSentences`.
    """
    parts: list[np.ndarray] = []
    for at in range(0, len(arrays), 6):
        task = SamplingTask(*arrays[at].tolist(), *arrays[at + 1 : at + 6])
        parts += sample_sentences(segmenters[task.side], rate, task)
    return parts


if __name__ == "__main__":
    serve()
