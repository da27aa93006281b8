"""The cost of real batches: training from the loader compared with one repeated batch."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tables import markdown_table

from training_speed import ROOT, jaxformer_trainer
from training_speed.report import machine, median_and_range
from training_speed.shapes import pin_to_cores

CONFIG_FILE = ROOT / "configs" / "multi30k_tiny.py"
LOADER, REPEATED, HELD = (
    "from the loader",
    "one batch of each shape, repeated",
    "the same batches, already on the device",
)


def load_config(root: str, cache: str):
    """The configuration of Multi30k on the files in `root`, with an empty cache."""
    from jaxformer.config import Config

    spec = importlib.util.spec_from_file_location("multi30k_tiny", CONFIG_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = Config.from_dict(module.get_config().to_dict())
    data = dataclasses.replace(config.data, root=root, cache_dir=cache)
    return dataclasses.replace(config, data=data)


def repeated_batches(batches: list[dict[str, Any]], pad_id: int) -> list[dict[str, Any]]:
    """For each batch, a fixed one of its shape: the one with the median number of target tokens."""
    by_shape: dict[Any, list[dict[str, Any]]] = {}
    for batch in batches:
        by_shape.setdefault(shape_of(batch), []).append(batch)
    chosen = {}
    for shape, group in by_shape.items():
        group = sorted(group, key=lambda batch: int(np.sum(np.asarray(batch["targets"]) != pad_id)))
        chosen[shape] = group[len(group) // 2]
    return [chosen[shape_of(batch)] for batch in batches]


def shape_of(batch: dict[str, Any]) -> tuple:
    return tuple(sorted((name, array.shape) for name, array in batch.items()))


class RealBatches:
    """A run on Multi30k whose steps can be fed from the loader or from the device."""

    def __init__(self, run):
        import jax

        from jaxformer.training.prefetch import DeviceBatches

        self.run = run
        self.state = run.program.first_state(jax.random.key(0), run.mesh)
        self.key = jax.random.key(1)
        self.loader = self.open_loader(0, run.dataset)
        self.from_loader = DeviceBatches(iter(self.loader), run.mesh)
        self.step = 0  # of the next batch from the loader
        self.compiled_shapes: set[tuple] = set()
        self.fetching = 0.0  # host seconds spent on getting and placing batches

    def open_loader(self, step: int, dataset):
        from jaxformer.data.loader import BatchLoader

        return BatchLoader(dataset, start_step=step)

    def train_from_loader(self, steps: int) -> float:
        """Seconds of `steps` updates, done like in the training loop."""

        def fetch(method: Callable[[], Any]) -> Any:
            started = time.perf_counter()
            value = method()
            self.fetching += time.perf_counter() - started
            return value

        self.step += steps
        return self._train(
            steps,
            take=lambda: fetch(self.from_loader.take),
            after_dispatch=lambda: fetch(self.from_loader.fetch),
        )

    def train_on(self, batches: list[dict[str, Any]]) -> float:
        """Seconds per update on `batches`, which are on the device."""
        return self._train(len(batches), iter(batches).__next__, lambda: None)

    def _train(self, steps: int, take: Callable, after_dispatch: Callable[[], None]) -> float:
        import jax

        from jaxformer.training.metrics import IntervalSums

        sums = IntervalSums(ends=lambda step: False, each=lambda step, values: None)
        started = time.perf_counter()
        for step in range(steps):
            self.state, step_sums = self.run.train_step(self.state, take(), self.key)
            after_dispatch()
            sums.add(step, step_sums)
        jax.block_until_ready((self.state, step_sums))
        return time.perf_counter() - started

    def next_on_device(self, steps: int) -> list[dict[str, Any]]:
        """The batches that the loader gives next, without moving it; their shapes are compiled."""
        from jaxformer.parallel.sharding import shard_batch

        own = copy.copy(self.run.dataset)  # whose workers, if any, are not those of the loader
        loader = self.open_loader(self.step, own)
        batches = [shard_batch(next(loader), self.run.mesh) for _ in range(steps)]
        loader.close()
        for batch in batches:
            if shape_of(batch) not in self.compiled_shapes:
                self.compiled_shapes.add(shape_of(batch))
                self.train_on([batch, batch])
        return batches


@contextmanager
def quiet_output() -> Iterator[None]:
    """Redirect a run's log to stderr, so that stdout holds only the report."""
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout


def measure_rounds(real: RealBatches, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step in each round, by the source of its batch."""
    seconds: dict[str, list[float]] = {name: [] for name in (LOADER, REPEATED, HELD)}
    for number in range(rounds):
        print(f"real batches: round {number + 1} of {rounds}", file=sys.stderr)
        held = real.next_on_device(steps)
        repeated = repeated_batches(held, real.run.dataset.pad_id)
        turns = list(seconds)
        for name in turns if number % 2 == 0 else reversed(turns):
            if name == LOADER:
                total = real.train_from_loader(steps)
            else:
                total = real.train_on(held if name == HELD else repeated)
            seconds[name].append(total / steps)
    return seconds


def real_batches_report(root: str, rounds: int, steps: int) -> str:
    cores = pin_to_cores()
    os.environ.update(jaxformer_trainer.ENVIRONMENT)  # before JAX is imported
    import jax

    import jaxformer
    from jaxformer.training.setup import prepare_run

    with tempfile.TemporaryDirectory(prefix="jaxformer-benchmark-") as folder:
        with quiet_output():
            run = prepare_run(load_config(root, f"{folder}/cache"), Path(folder) / "run")
        real = RealBatches(run)
        try:
            seconds = measure_rounds(real, rounds, steps)
        finally:
            real.loader.close()
    rows = []
    for name, values in seconds.items():
        pairs = zip(seconds[LOADER], values, strict=True)
        row = [name, median_and_range([1000 * value for value in values], 0)]
        rows.append([*row, median_and_range([a / b for a, b in pairs], 3)])
    fetching = 1000 * real.fetching / (steps * rounds)
    versions = f"jaxformer {jaxformer.__version__}, jax {jax.__version__}"
    command = "python benchmarks/train.py --input-pipeline --root=DIR"
    return f"""\
`{command} --rounds={rounds} --steps={steps}`

{machine(cores, [versions])}

{markdown_table(["batches", "ms a step", "from the loader / this"], rows)}

Multi30k English-German as in configs/multi30k_tiny.py: {run.config.data.tokens_per_batch:,} tokens
per side, {len(real.compiled_shapes)} shapes. Each of {rounds} rounds trains {steps} steps from each
source, alternating, on the same shapes: median [lowest, highest] of the rounds. Getting and placing
a batch takes {fetching:.1f} ms of host time, most of it while the previous step runs."""
