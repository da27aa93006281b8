"""Training speed beside plain PyTorch: python benchmarks/train.py [--shapes tiny small base].

Each system trains the same shape on the same random batch in a process of its own, pinned to the
same cores. The parent lets one of them work at a time, in turn, so that what else the machine does
falls on both alike, and prints a Markdown table. PyTorch is needed here only: pip install torch
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

THREADS = 2
WARM_UP_STEPS = 3  # untimed, the first one included
LEARNING_RATE = 3e-4  # constant, so that a few updates already lower the loss
DROPOUT = LABEL_SMOOTHING = 0.1
PAD_ID, BOS_ID, FIRST_ID = 0, 2, 4


class Shape(NamedTuple):
    """Dimensions of a model and a batch of `rows` pairs of `length` tokens a side, all full.

    They repeat jaxformer's presets, so that PyTorch's process need not import JAX.
    """

    layers: int
    d_model: int
    d_ff: int
    heads: int
    vocab_size: int
    rows: int
    length: int


SHAPES = {
    "tiny": Shape(4, 128, 256, 4, 10_000, 128, 32),
    "small": Shape(3, 256, 1024, 8, 32_000, 64, 32),
    "base": Shape(6, 512, 2048, 8, 32_000, 16, 64),
}


class Trainer(NamedTuple):
    """A model ready to train; `run(steps)` returns the loss of the last step once it is done."""

    run: Callable[[int], float]
    parameters: int
    versions: str


def random_batch(shape: Shape) -> dict[str, np.ndarray]:
    """int32 `inputs` and `targets` `[rows, length]` without padding, the same on each call."""
    draw = np.random.default_rng(0).integers
    size = (2, shape.rows, shape.length)
    inputs, targets = draw(FIRST_ID, shape.vocab_size, size, dtype=np.int32)
    return {"inputs": inputs, "targets": targets}


def step_flops(shape: Shape) -> float:
    """Floating-point operations of the matrix products of one update.

    Two for each multiply-add, the backward pass twice the forward one. Masked scores count, since
    they are computed.
    """
    attention = 4 * shape.d_model**2 + 2 * shape.length * shape.d_model
    layers = shape.layers * (3 * attention + 4 * shape.d_model * shape.d_ff)
    return 6.0 * shape.rows * shape.length * (layers + shape.d_model * shape.vocab_size)


def model_config(shape: Shape):
    from jaxformer.config import TransformerConfig

    return TransformerConfig(  # dropout and biases wherever torch.nn.Transformer has them
        vocab_size=shape.vocab_size,
        num_encoder_layers=shape.layers,
        num_decoder_layers=shape.layers,
        d_model=shape.d_model,
        d_ff=shape.d_ff,
        num_heads=shape.heads,
        attention_bias=True,
        dropout_rate=DROPOUT,
        attention_dropout_rate=DROPOUT,
        activation_dropout_rate=DROPOUT,
    )


def prepare_jaxformer(shape: Shape) -> Trainer:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import jax

    import jaxformer
    from jaxformer.config import MeshConfig, OptimizerConfig, TrainingConfig
    from jaxformer.parallel.mesh import make_mesh
    from jaxformer.parallel.sharding import shard_batch
    from jaxformer.tasks.translation import Translation
    from jaxformer.training.optimizer import make_optimizer, make_schedule
    from jaxformer.training.state import abstract_state, create_state, make_init
    from jaxformer.training.step import make_train_step

    task = Translation(model_config(shape), pad_id=PAD_ID, bos_id=BOS_ID)
    settings = OptimizerConfig(schedule="constant", learning_rate=LEARNING_RATE, warmup_steps=0)
    optimizer = make_optimizer(
        settings, make_schedule(settings, d_model=shape.d_model, num_steps=1)
    )
    training = TrainingConfig(label_smoothing=LABEL_SMOOTHING)
    mesh = make_mesh(MeshConfig())
    init = make_init(task, optimizer, ema=False)
    state = create_state(init, jax.random.key(0), mesh)
    abstract = abstract_state(init, mesh)
    train_step = make_train_step(task, optimizer, settings, training, mesh=mesh, abstract=abstract)
    batch = shard_batch(random_batch(shape), mesh)
    key = jax.random.key(1)

    def run(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, sums = train_step(state, batch, key)
        jax.block_until_ready((state, sums))
        return float(sums["loss"]) / float(sums["tokens"])

    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return Trainer(run, parameters, f"jaxformer {jaxformer.__version__}, jax {jax.__version__}")


def sinusoids(length: int, width: int) -> np.ndarray:
    """Positional encodings of the paper (3.5), float32 `[length, width]`."""
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, width, 2) / width)
    table = np.empty((length, width), np.float32)
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


def pytorch_model(shape: Shape):
    """`torch.nn.Transformer` as it comes, between tied embeddings with sinusoidal positions."""
    import torch

    width = shape.d_model

    class TiedTransformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(shape.vocab_size, width)
            torch.nn.init.normal_(self.embedding.weight, std=width**-0.5)
            stacks = (shape.heads, shape.layers, shape.layers, shape.d_ff, DROPOUT, "relu")
            self.transformer = torch.nn.Transformer(width, *stacks, batch_first=True)
            self.dropout = torch.nn.Dropout(DROPOUT)
            self.positions = torch.from_numpy(sinusoids(shape.length, width))
            self.causal = torch.nn.Transformer.generate_square_subsequent_mask(shape.length)

        def embed(self, tokens):
            return self.dropout(self.embedding(tokens) * width**0.5 + self.positions)

        def forward(self, inputs, decoder_inputs):
            source, target = self.embed(inputs), self.embed(decoder_inputs)
            decoded = self.transformer(source, target, tgt_mask=self.causal, tgt_is_causal=True)
            return torch.nn.functional.linear(decoded, self.embedding.weight)

    torch.manual_seed(0)
    return TiedTransformer()


def prepare_pytorch(shape: Shape) -> Trainer:
    import torch

    torch.set_num_threads(THREADS)
    model = pytorch_model(shape).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    batch = {name: torch.from_numpy(ids).long() for name, ids in random_batch(shape).items()}
    targets = batch["targets"]
    start = torch.full((shape.rows, 1), BOS_ID)

    def run(steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            logits = model(batch["inputs"], torch.cat([start, targets[:, :-1]], dim=1))
            loss = criterion(logits.flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
        return loss.item()

    parameters = sum(p.numel() for p in model.parameters())
    return Trainer(run, parameters, f"torch {torch.__version__}")


class System(NamedTuple):
    """A column of the table: how its process starts and how it gets a model ready."""

    title: str
    prepare: Callable[[Shape], Trainer]
    environment: dict[str, str]


SYSTEMS = {
    "jaxformer": System(
        "jaxformer",
        prepare_jaxformer,
        {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"},  # a cold first start
    ),
    "pytorch": System("PyTorch eager", prepare_pytorch, {"OMP_NUM_THREADS": str(THREADS)}),
}
OURS = "jaxformer"  # the numerator of every ratio
DIFFERENCES = """\
torch.nn.Transformer has biases on its attention projections and drops attention weights and
feed-forward activations too, so jaxformer is told to do the same; the presets alone follow the
paper, which has none of these. What still differs: PyTorch has one more LayerNorm after each stack;
jaxformer's step also measures the unsmoothed loss, the accuracy and the gradient norm. Both start
from their own random parameters."""


def pin_to_cores() -> int:
    """Keep this process on the first `THREADS` cores it may use; how many those are."""
    if not hasattr(os, "sched_setaffinity"):
        return os.cpu_count() or 1
    cores = sorted(os.sched_getaffinity(0))[:THREADS]
    os.sched_setaffinity(0, cores)
    return len(cores)


def work(system: str, shape: Shape) -> None:
    """A worker: warm up, then time as many steps as each line of stdin says; answers in JSON."""
    cores = pin_to_cores()  # before JAX or PyTorch size their thread pools

    def answer(**values: Any) -> None:
        print(json.dumps(values), flush=True)

    trainer = SYSTEMS[system].prepare(shape)
    first_loss = trainer.run(1)
    facts = {"parameters": trainer.parameters, "versions": trainer.versions, "cores": cores}
    answer(first_loss=first_loss, **facts)
    answer(loss=trainer.run(WARM_UP_STEPS - 1))
    for line in sys.stdin:
        start = time.perf_counter()
        trainer.run(int(line))
        answer(seconds=time.perf_counter() - start)


class Worker:
    """The parent's end of a worker; `facts` is what it said after its first step and warm-up."""

    def __init__(self, system: str, process: subprocess.Popen, started: float):
        self.system, self.process = system, process
        self.facts = self._read()
        self.facts["first_step_seconds"] = time.perf_counter() - started
        self.facts |= self._read()

    def time_steps(self, steps: int) -> float:
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._read()["seconds"]

    def _read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.system} worker ended with {self.process.wait()}")
        return json.loads(line)


@contextmanager
def start_worker(system: str, shape_name: str) -> Iterator[Worker]:
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, f"--worker={system}", f"--shape={shape_name}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | SYSTEMS[system].environment,
    )
    try:
        yield Worker(system, process, started)
    finally:
        process.kill()
        process.wait()


class Measurement(NamedTuple):
    """Of one shape, by system: facts of the worker, and seconds of a step in each round."""

    facts: dict[str, dict[str, Any]]
    seconds: dict[str, list[float]]


def measure(shape_name: str, rounds: int, steps: int) -> Measurement:
    with ExitStack() as stack:
        workers = {name: stack.enter_context(start_worker(name, shape_name)) for name in SYSTEMS}
        seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
        for number in range(rounds):
            print(f"{shape_name}: round {number + 1} of {rounds}", file=sys.stderr)
            for name, worker in workers.items():
                seconds[name].append(worker.time_steps(steps) / steps)
        return Measurement({name: worker.facts for name, worker in workers.items()}, seconds)


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def speed_table(measured: dict[str, Measurement]) -> str:
    """Median target tokens/s and GFLOP/s of each system; median [range] of each round's ratio."""
    others = [name for name in SYSTEMS if name != OURS]
    header = ["shape", "rows x length"]
    for system in SYSTEMS.values():
        header += [f"{system.title} tokens/s", "GFLOP/s"]
    header += [f"{SYSTEMS[OURS].title} / {SYSTEMS[name].title}" for name in others]
    rows = []
    for shape_name, (_, seconds) in measured.items():
        shape = SHAPES[shape_name]
        row = [shape_name, f"{shape.rows} x {shape.length}"]
        for name in SYSTEMS:
            median = statistics.median(seconds[name])
            row.append(f"{shape.rows * shape.length / median:,.0f}")
            row.append(f"{step_flops(shape) / median / 1e9:.1f}")
        for name in others:
            ratios = [a / b for a, b in zip(seconds[name], seconds[OURS], strict=True)]
            row.append(f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]")
        rows.append(row)
    return markdown_table(header, rows)


def check_table(measured: dict[str, Measurement]) -> str:
    """That the systems do the same work: parameters and losses, and the time to the first step."""
    header = ["shape, system", "parameters", "loss at step 1", f"at step {WARM_UP_STEPS}"]
    rows = []
    for shape_name, measurement in measured.items():
        for name, facts in measurement.facts.items():
            row = [f"{shape_name}, {SYSTEMS[name].title}", f"{facts['parameters']:,}"]
            row += [f"{facts[loss]:.3f}" for loss in ("first_loss", "loss")]
            rows.append([*row, f"{facts['first_step_seconds']:.1f}"])
    return markdown_table([*header, "start to first step, s"], rows)


def processor_name() -> str:
    """The CPU model as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n")
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report(measured: dict[str, Measurement], rounds: int, steps: int) -> str:
    facts = next(iter(measured.values())).facts
    command = f"python benchmarks/train.py --rounds={rounds} --steps={steps} --shapes"
    versions = ", ".join(facts[name]["versions"] for name in SYSTEMS)
    return f"""\
`{command} {" ".join(measured)}`

{processor_name()}, {os.cpu_count()} cores, {facts[OURS]["cores"]} used; {versions}, \
Python {platform.python_version()}.

{speed_table(measured)}

Float32, dropout {DROPOUT}, label smoothing {LABEL_SMOOTHING}, Adam. Target tokens/s and GFLOP/s
(matrix products only): medians of {rounds} rounds of {steps} steps, the systems in turn. Ratio:
median [lowest, highest] of the rounds, above 1 where jaxformer is faster.

{check_table(measured)}

{DIFFERENCES}"""


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0], allow_abbrev=False)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=7, help="timings of each system")
    parser.add_argument("--steps", type=int, default=3, help="updates in a timing")
    parser.add_argument("--worker", choices=SYSTEMS, help="be the process of this system")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="of the worker")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.steps) < 1:
        parser.error("--rounds and --steps must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.worker:
        work(options.worker, SHAPES[options.shape])
        return 0
    if importlib.util.find_spec("torch") is None:
        print("error: PyTorch, the other side, is missing: pip install torch", file=sys.stderr)
        return 2
    measured = {name: measure(name, options.rounds, options.steps) for name in options.shapes}
    print(report(measured, options.rounds, options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
