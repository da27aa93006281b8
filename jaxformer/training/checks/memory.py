"""What the train step needs of a device's memory, known before the first step."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.batching import BatchShape
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import batch_sharding
from jaxformer.training.metrics import log
from jaxformer.training.setup import Run

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
TOKEN_MULTIPLE = 128  # proposed token budgets are multiples of it


class StepMemory(NamedTuple):
    """Bytes of one device that the train step needs.

    Attributes:
      state: parameters, optimizer state and moving average.
      gradients: of the parameters; a part of `temporaries` that no smaller batch saves.
      batches: this one, and the next that waits for it.
      temporaries: all that lives only within a step, and the program.
    """

    state: int
    gradients: int
    batches: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.state + self.batches + self.temporaries


def activation_cells(config: TransformerConfig, shape: BatchShape) -> int:
    """About how many numbers a step keeps for its backward pass: to tell the largest shape."""
    rows, source, target = shape.rows, shape.source_length, shape.target_length
    scores = 3 * config.num_heads
    inner = 2 * config.d_ff
    encoder = source * (8 * config.d_model + inner) + scores * source**2
    decoder = target * (12 * config.d_model + inner) + scores * target * (target + source)
    return rows * (config.num_encoder_layers * encoder + config.num_decoder_layers * decoder)


def largest_shape(run: Run) -> BatchShape:
    """The batch shape of the plan that takes most memory."""
    return max(run.plan.shapes(), key=lambda shape: activation_cells(run.config.model, shape))


def abstract_batch(run: Run, shape: BatchShape) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a global batch."""
    parts = ("", "_segments", "_positions") if run.config.data.batching == "packed" else ("",)
    return {
        side + part: jax.ShapeDtypeStruct(
            (shape.rows, length), jnp.int32, sharding=batch_sharding(run.mesh)
        )
        for side, length in (("inputs", shape.source_length), ("targets", shape.target_length))
        for part in parts
    }


def bytes_per_device(tree: Any) -> int:
    """Bytes that one device holds of a tree of `ShapeDtypeStruct`s with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def step_memory(run: Run, shape: BatchShape) -> StepMemory | None:
    """Compile the train step for a batch shape and ask XLA what it needs.

    The compiled program is kept by `run.train_step`, and is not compiled again at its first call.
    """
    batch = abstract_batch(run, shape)
    compiled = run.train_step.lower(run.abstract, batch, jax.random.key(0)).compile()
    return program_memory(compiled, run.abstract, batch)


def program_memory(compiled: jax.stages.Compiled, state: Any, batch: Any) -> StepMemory | None:
    """What a compiled train step needs, by XLA's account; None if it gives none.

    Args:
      compiled: the step.
      state, batch: trees of `ShapeDtypeStruct`s with shardings, its arguments.
    """
    needed = compiled.memory_analysis()
    if needed is None:
        return None
    made = needed.output_size_in_bytes - needed.alias_size_in_bytes
    return StepMemory(
        state=bytes_per_device(state),
        gradients=bytes_per_device(state.params),
        batches=2 * bytes_per_device(batch),
        temporaries=needed.temp_size_in_bytes + made + needed.generated_code_size_in_bytes,
    )


def device_memory(device: jax.Device) -> int | None:
    """Bytes that a device has for arrays; None if it does not say.

    Devices of the CPU share the machine's memory, or that of the control group it gives us.
    """
    statistics = device.memory_stats()
    if statistics and "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    if device.platform != "cpu":
        return None
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    texts = [path.read_text().strip() for path in CGROUP_LIMITS if path.is_file()]
    limits += [int(text) for text in texts if text.isdigit()]
    return min(limits) // jax.local_device_count(device.platform)


def propose_tokens(
    memory: StepMemory, available: int, tokens_per_batch: int, smallest: int
) -> int | None:
    """A token budget whose train step fits: what grows with the batch is scaled, the rest is not.

    Args:
      memory: with `tokens_per_batch`.
      available: bytes of a device.
      tokens_per_batch: as it is.
      smallest: budget below which no batch can be made.

    Returns:
      A multiple of `TOKEN_MULTIPLE` or `smallest`; None if even that does not fit.
    """
    fixed = memory.state + min(memory.gradients, memory.temporaries)
    scale = (available - fixed) / max(memory.total - fixed, 1)
    tokens = max(int(tokens_per_batch * scale), 0)
    if tokens < smallest:
        return None
    return max(tokens // TOKEN_MULTIPLE * TOKEN_MULTIPLE, smallest)


def check_memory(run: Run) -> None:
    """Compile the train step for the largest batch, and log what it needs beside what is there.

    Raises:
      InputError: the device has less; with a token budget that fits.
    """
    shape = largest_shape(run)
    with explain_out_of_memory(run.config, run.mesh):
        memory = step_memory(run, shape)
    if memory is None:
        log("memory    unknown: this device's compiler does not tell")
        return
    available = device_memory(run.mesh.local_devices[0])
    there = "" if available is None else f" of {format_bytes(available)}"
    parts = (
        f"{format_bytes(memory.state)} parameters and optimizer, "
        f"{format_bytes(memory.temporaries)} temporaries, {format_bytes(memory.batches)} batches"
    )
    largest = f"{shape.rows:,} x ({shape.source_length:,} + {shape.target_length:,}) tokens"
    log(f"memory    {format_bytes(memory.total)}{there} a device at {largest}: {parts}")
    if available is None or memory.total <= available:
        return
    config = run.config
    row_multiple = batch_parts(run.mesh) * config.optimizer.accumulation_steps
    longest = max(max(x.source_length, x.target_length) for x in run.plan.shapes())
    smallest = max(row_multiple * longest, config.data.max_length)
    tokens = propose_tokens(memory, available, config.data.tokens_per_batch, smallest)
    raise InputError(
        f"a step on {largest} needs {format_bytes(memory.total)} a device, which has "
        f"{format_bytes(available)}: {parts}; {smaller_batches(config, tokens, smallest)}"
    )


def smallest_budget(config: Config, mesh: Mesh) -> int:
    """The least data.tokens_per_batch that gives each device and accumulated part a longest row."""
    return batch_parts(mesh) * config.optimizer.accumulation_steps * config.data.max_length


def smaller_batches(config: Config, tokens: int | None, smallest: int) -> str:
    """What to change when memory runs out.

    Args:
      config: of the run.
      tokens: a budget that fits, None if there is none.
      smallest: budget below which no batch can be made.
    """
    budget = (
        f"set data.tokens_per_batch={tokens} (now {config.data.tokens_per_batch})"
        if tokens is not None
        else "lower data.max_length and data.tokens_per_batch, or cut the model with mesh.fsdp"
    )
    keeping = []
    if not config.model.remat:
        keeping.append("model.remat=true")
    elif config.model.remat_policy != "nothing":
        keeping.append("model.remat_policy=nothing")
    if 2 * smallest <= config.data.tokens_per_batch:
        keeping.append(f"optimizer.accumulation_steps={2 * config.optimizer.accumulation_steps}")
    return f"{budget}, or keep the batch with {', or '.join(keeping)}" if keeping else budget


def explain_out_of_memory(config: Config, mesh: Mesh) -> AbstractContextManager[None]:
    """Turn XLA's RESOURCE_EXHAUSTED in training into an `InputError` that says what to change."""
    half, smallest = config.data.tokens_per_batch // 2, smallest_budget(config, mesh)
    return advise_when_out_of_memory(
        f"{smaller_batches(config, half if half >= smallest else None, smallest)}; "
        "if it was evaluating, lower decoding.tokens_per_batch"
    )


@contextlib.contextmanager
def advise_when_out_of_memory(advice: str) -> Iterator[None]:
    """Turn XLA's RESOURCE_EXHAUSTED into an `InputError` with `advice` on what to change."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).partition("\n")[0]
        raise InputError(f"the device ran out of memory ({reason}); {advice}") from error


def format_bytes(count: int) -> str:
    """`1.5 GiB`, or MiB below one."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
