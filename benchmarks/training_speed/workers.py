"""The systems, one process each, and how they are timed in turn."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from training_speed import ROOT, jaxformer_trainer, pytorch_trainer
from training_speed.shapes import WARM_UP_STEPS, Shape, Trainer, pin_to_cores


class System(NamedTuple):
    """How a process starts, prepares a model and measures its library's matrix products."""

    title: str
    prepare: Callable[[Shape], Trainer]
    peak: Callable[[], float]
    environment: dict[str, str]


OURS, REMAT = "jaxformer", "jaxformer-remat"
EAGER, COMPILED, TUNED = "pytorch", "pytorch-compile", "pytorch-tuned"
SYSTEMS = {
    OURS: System(
        "jaxformer",
        jaxformer_trainer.prepare_jaxformer,
        jaxformer_trainer.xla_peak,
        jaxformer_trainer.ENVIRONMENT,
    ),
    REMAT: System(
        "jaxformer, model.remat",
        partial(jaxformer_trainer.prepare_jaxformer, remat_policy="projections"),
        jaxformer_trainer.xla_peak,
        jaxformer_trainer.ENVIRONMENT,
    ),
    EAGER: System(
        "PyTorch eager",
        pytorch_trainer.prepare_pytorch,
        pytorch_trainer.pytorch_peak,
        pytorch_trainer.EAGER_ENVIRONMENT,
    ),
    COMPILED: System(
        "PyTorch compiled",
        pytorch_trainer.prepare_compiled,
        pytorch_trainer.pytorch_peak,
        pytorch_trainer.EAGER_ENVIRONMENT,
    ),
    TUNED: System(
        "PyTorch tuned",
        pytorch_trainer.prepare_tuned,
        pytorch_trainer.pytorch_peak,
        pytorch_trainer.TUNED_ENVIRONMENT,
    ),
}


def work(name: str, shape: Shape) -> None:
    """A worker: warm up, then execute each line of stdin and answer in JSON.

    A line is `peak` or a number of steps. An answer also contains the processor time used since the
    previous answer, while the process was idle.
    """
    cores = pin_to_cores()  # before JAX or PyTorch size their thread pools
    system = SYSTEMS[name]

    def answer(**values: Any) -> None:
        print(json.dumps(values), flush=True)

    trainer = system.prepare(shape)
    first_loss = trainer.run(1)
    facts = {"parameters": trainer.parameters, "versions": trainer.versions, "cores": cores}
    answer(first_loss=first_loss, **facts)
    answer(loss=trainer.run(WARM_UP_STEPS - 1))
    asleep, idle_since = time.perf_counter(), time.process_time()
    for line in sys.stdin:
        awake = time.perf_counter()
        waiting = {"waited": awake - asleep, "idle_cpu": time.process_time() - idle_since}
        if line.strip() == "peak":
            answer(peak=system.peak(), **waiting)
        else:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            trainer.run(int(line))
            seconds = time.perf_counter() - awake
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
            answer(seconds=seconds, faults=faults, **waiting)
        asleep, idle_since = time.perf_counter(), time.process_time()


class Worker:
    """The parent's end of a worker.

    Attributes:
      facts: what it said after its first step and its warm-up, and `first_step_seconds` from its
        start.
      waited, idle_cpu: seconds of waiting for its turn, and processor time used meanwhile.
    """

    def __init__(self, system: str, process: subprocess.Popen, started: float):
        self.system, self.process = system, process
        self.waited = self.idle_cpu = 0.0
        self.facts = self._read()
        self.facts["first_step_seconds"] = time.perf_counter() - started
        self.facts |= self._read()

    def time_steps(self, steps: int) -> tuple[float, float]:
        """Seconds and page faults of a step."""
        answer = self._ask(str(steps))
        return answer["seconds"] / steps, answer["faults"] / steps

    def measure_peak(self) -> float:
        """FLOP/s of the library's best matrix product."""
        return self._ask("peak")["peak"]

    def _ask(self, line: str) -> dict[str, Any]:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer = self._read()
        self.waited += answer["waited"]
        self.idle_cpu += answer["idle_cpu"]
        return answer

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.system} worker ended with {self.process.wait()}")
        return json.loads(line)


@contextmanager
def start_worker(system: str, shape_name: str) -> Iterator[Worker]:
    script = str(ROOT / "benchmarks" / "train.py")
    with tempfile.TemporaryDirectory(prefix="jaxformer-benchmark-") as folder:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, script, f"--worker={system}", f"--shape={shape_name}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # An empty folder for compiled programs: a cold start, as jaxformer's is.
            env=os.environ | SYSTEMS[system].environment | {"TORCHINDUCTOR_CACHE_DIR": folder},
        )
        try:
            yield Worker(system, process, started)
        finally:
            process.kill()
            process.wait()


class Measurement(NamedTuple):
    """The measurements of one shape, by system and round.

    Attributes:
      facts: what the workers reported, with `idle_share`, processor time over waiting time.
      seconds: of a step.
      faults: page faults of a step.
      peaks: FLOP/s of the best matrix product, for one system of each library.
    """

    facts: dict[str, dict[str, Any]]
    seconds: dict[str, list[float]]
    faults: dict[str, list[float]]
    peaks: dict[str, list[float]]

    def best_peak(self) -> float:
        return max(max(values) for values in self.peaks.values())


def measure(shape_name: str, systems: list[str], rounds: int, steps: int) -> Measurement:
    """Start all systems, then run one at a time, alternating, so that all see the same noise.

    The order is reversed in every round.
    """
    libraries = {SYSTEMS[name].peak: name for name in reversed(systems)}
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    faults: dict[str, list[float]] = {name: [] for name in systems}
    peaks: dict[str, list[float]] = {name: [] for name in systems if name in libraries.values()}
    with ExitStack() as stack:
        workers = {}
        for name in systems:
            print(f"{shape_name}: starting {name}", file=sys.stderr)
            workers[name] = stack.enter_context(start_worker(name, shape_name))
        for number in range(rounds):
            print(f"{shape_name}: round {number + 1} of {rounds}", file=sys.stderr)
            for name in peaks:
                peaks[name].append(workers[name].measure_peak())
            for name in systems if number % 2 == 0 else reversed(systems):
                step_seconds, step_faults = workers[name].time_steps(steps)
                seconds[name].append(step_seconds)
                faults[name].append(step_faults)
        for worker in workers.values():
            worker.facts["idle_share"] = worker.idle_cpu / worker.waited
        facts = {name: worker.facts for name, worker in workers.items()}
    return Measurement(facts, seconds, faults, peaks)


def environment_of(system: str) -> str:
    """The environment variables that the benchmark sets for a system, as in a shell."""
    return " ".join(f"{name}={value}" for name, value in SYSTEMS[system].environment.items())
