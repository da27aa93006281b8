"""Training speed on accelerators, attention by attention: python benchmarks/accelerator.py.

Each line trains one model on random sentences of one bucket, with one implementation of attention:
`rows x length` with padding, lengths drawn from just above half the bucket's length to all of it.
The implementations alternate. Tokens are counted without padding, and so are the FLOPs of the share
of the device's peak (MFU). Unsupported calls of an implementation are reported.

It also runs on a CPU, but then says nothing about accelerators:
--models tiny --tokens 512 --lengths 16.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tables import markdown_table
from training_speed.report import median_and_range
from training_speed.shapes import BOS_ID, FIRST_ID, PAD_ID, WARM_UP_STEPS

sys.path.insert(0, str(Path(__file__).parents[1]))

from jaxformer.errors import InputError
from jaxformer.model_config import ATTENTION_IMPLEMENTATIONS, DTYPES, PRESETS, TransformerConfig

VOCAB_SIZE = 32_000


class Batch(NamedTuple):
    """int32 `inputs` and `targets` `[rows, length]`, and their tokens `[rows]`."""

    arrays: dict[str, np.ndarray]
    source_lengths: np.ndarray
    target_lengths: np.ndarray


class Measurement(NamedTuple):
    """One model on one bucket with one attention.

    Attributes:
      name: of the attention.
      seconds: of a step, one for each round.
      memory: bytes that the step needs on a device; 0 if the compiler does not report them.
    """

    name: str
    seconds: list[float]
    memory: int


def draw_batch(rows: int, length: int) -> Batch:
    """Sentences of a bucket, the same on each call."""
    random = np.random.default_rng(length)
    sides, lengths = {}, []
    for name in ("inputs", "targets"):
        tokens = random.integers(length // 2 + 1, length + 1, rows)
        ids = random.integers(FIRST_ID, VOCAB_SIZE, (rows, length), dtype=np.int32)
        sides[name] = np.where(np.arange(length) < tokens[:, None], ids, PAD_ID)
        lengths.append(tokens)
    return Batch(sides, *lengths)


class Training:
    """A model in training on one batch."""

    def __init__(self, model: TransformerConfig, batch: Batch):
        import jax

        from jaxformer.config import MeshConfig, OptimizerConfig, TrainingConfig
        from jaxformer.parallel.mesh import make_mesh
        from jaxformer.parallel.sharding import shard_batch
        from jaxformer.tasks.translation_loss import Translation
        from jaxformer.training.checks.memory import program_memory
        from jaxformer.training.program import TrainingProgram

        mesh = make_mesh(MeshConfig())
        training = TrainingConfig()
        objective = Translation(
            model, pad_id=PAD_ID, bos_id=BOS_ID, label_smoothing=training.label_smoothing
        )
        optimizer = OptimizerConfig(warmup_steps=4000)
        program = TrainingProgram(objective, optimizer, training.num_steps)
        abstract, self._step = program.abstract(mesh), program.train_step(mesh)
        self._batch = shard_batch(batch.arrays, mesh)
        self._key = jax.random.key(1)
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), self._batch
        )
        compiled = self._step.lower(abstract, shapes, self._key).compile()
        memory = program_memory(compiled, abstract, shapes)
        self.memory = memory.total if memory else 0
        self._state = program.first_state(jax.random.key(0), mesh)

    def run(self, steps: int) -> float:
        """Seconds of a step; raises `FloatingPointError` if the loss is not finite."""
        import jax

        start = time.perf_counter()
        for _ in range(steps):
            self._state, sums = self._step(self._state, self._batch, self._key)
        jax.block_until_ready((self._state, sums))
        seconds = (time.perf_counter() - start) / steps
        if not np.isfinite(float(sums["loss"])) or float(sums["skipped"]):
            raise FloatingPointError("the loss or the gradient is not finite")
        return seconds


def check_use(model: TransformerConfig, rows: int, length: int) -> str:
    """The implementation of the encoder's attention; `InputError` if not the requested one."""
    import jax

    from jaxformer.ops.attention_choice import choose, current_backend
    from jaxformer.ops.attention_mask import model_masks

    array = jax.ShapeDtypeStruct((rows, length, model.num_heads, model.head_dim), model.dtype)
    attention_mask = model_masks(inputs_lengths=jax.ShapeDtypeStruct((rows,), np.int32)).encoder
    backend = current_backend()._replace(unplaced=False)
    return choose(
        model.attention_implementation, backend, array, array, attention_mask, strict=True
    ).implementation


def measure(options: argparse.Namespace, model_name: str, length: int) -> Iterator[list[str]]:
    """Lines of the table for one model and bucket."""
    import jax

    from jaxformer.models.flops import forward_flops
    from jaxformer.runtime.device_peaks import peak_flops

    rows = max(options.tokens // length, jax.device_count())
    batch = draw_batch(rows, length)
    trainings: dict[str, Training] = {}
    refused: dict[str, str] = {}
    for name in options.attention:
        model = TransformerConfig.preset(
            model_name,
            vocab_size=VOCAB_SIZE,
            dtype=options.dtype,
            attention_implementation=name,
            remat=options.remat,
        )
        print(f"{model_name}, {rows} x {length}, {name}: compiling", file=sys.stderr)
        try:
            used = check_use(model, rows, length)
            trainings[name if used == name else f"{name}: {used}"] = Training(model, batch)
        except (InputError, jax.errors.JaxRuntimeError) as error:
            refused[name] = str(error).partition("\n")[0]
    timed = time_rounds(trainings, options.rounds, options.steps)
    tokens = int(batch.target_lengths.sum())
    forward = forward_flops(model, batch.source_lengths, batch.target_lengths)
    flops = forward.times(3.0).total  # the backward pass as two forward passes
    peak = peak_flops(jax.devices()[0].device_kind, options.dtype)
    for name, seconds, memory in timed:
        middle = statistics.median(seconds)
        share = f"{flops / middle / peak / jax.device_count():.1%}" if peak else "-"
        yield [
            f"{model_name}, {rows:,} x {length}, {name}",
            median_and_range([1e3 * value for value in seconds], 1),
            f"{tokens / middle:,.0f}",
            f"{rows * length / middle:,.0f}",
            f"{flops / middle / 1e12:,.2f}",
            share,
            f"{memory / 2**30:.1f}" if memory else "-",
        ]
    for name, reason in refused.items():
        yield [f"{model_name}, {rows:,} x {length}, {name}", reason, *["-"] * 5]


def time_rounds(trainings: dict[str, Training], rounds: int, steps: int) -> list[Measurement]:
    """Run each training in turn, `rounds` times; the first steps are not timed."""
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for training in trainings.values():
        training.run(WARM_UP_STEPS)
    for number in range(rounds):
        names = list(trainings)
        for name in names if number % 2 == 0 else reversed(names):
            seconds[name].append(trainings[name].run(steps))
    return [Measurement(name, seconds[name], trainings[name].memory) for name in trainings]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=PRESETS, default=["base", "big"])
    parser.add_argument("--tokens", type=int, default=65_536, help="per step and side, padded")
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 64, 128, 256])
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument(
        "--attention",
        nargs="+",
        choices=ATTENTION_IMPLEMENTATIONS,
        default=["auto", "xla", "reference"],
    )
    parser.add_argument("--remat", action="store_true", help="model.remat")
    parser.add_argument("--rounds", type=int, default=5, help="timings per line")
    parser.add_argument("--steps", type=int, default=10, help="updates per timing")
    options = parser.parse_args(arguments)
    if min(options.tokens, options.rounds, options.steps, *options.lengths) < 1:
        parser.error("--tokens, --lengths, --rounds and --steps must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)

    from jaxformer.runtime.backend import configure_backend

    configure_backend()
    import jax

    import jaxformer

    rows: list[list[Any]] = []
    for model in options.models:
        for length in options.lengths:
            rows += measure(options, model, length)
    header = ["model, rows x length, attention", "ms a step", "target tokens/s"]
    header += ["with padding", "TFLOP/s", "MFU", "GiB a device"]
    print(f"{jax.device_count()} x {jax.devices()[0].device_kind}, {options.dtype}", end="; ")
    print(f"jaxformer {jaxformer.__version__}, jax {jax.__version__}\n")
    print(markdown_table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
