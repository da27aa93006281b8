"""How much device memory the train step needs, known before the first step."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from jaxformer.config import Config
from jaxformer.data.dataset import BatchSpec, Dataset, num_rows
from jaxformer.errors import InputError
from jaxformer.parallel.mesh import row_multiple
from jaxformer.parallel.sharding import batch_sharding
from jaxformer.tasks.task import BatchBudget, Objective, Task
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
      gradients: the part of `temporaries` that a smaller batch does not reduce.
      batches: the current one, and the next one.
      temporaries: everything that lives only within a step, and the program.
    """

    state: int
    gradients: int
    batches: int
    temporaries: int

    @property
    def total(self) -> int:
        return self.state + self.batches + self.temporaries


def largest_spec(objective: Objective, dataset: Dataset) -> BatchSpec:
    """The spec of the batches that take the most memory."""
    return max(dataset.specs(), key=objective.activation_size)


def abstract_batch(spec: BatchSpec, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of a global batch."""
    sharding = batch_sharding(mesh)
    return {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        for name, array in spec.items()
    }


def bytes_per_device(tree: Any) -> int:
    """Bytes that one device holds of a tree of `ShapeDtypeStruct`s with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def step_memory(run: Run, spec: BatchSpec) -> StepMemory | None:
    """Compile the train step for a batch and ask XLA what it needs.

    `run.train_step` keeps the compiled program: its first call does not compile again.
    """
    batch = abstract_batch(spec, run.mesh)
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

    CPU devices share the machine's memory, or the limit of their control group.
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


def propose_budget(memory: StepMemory, available: int, value: int, smallest: int) -> int | None:
    """A token budget whose train step fits: what grows with the batch is scaled, the rest is not.

    Args:
      memory: needed with this budget.
      available: bytes of a device.
      value: current value of the budget.
      smallest: the smallest budget that holds a batch.

    Returns:
      A multiple of `TOKEN_MULTIPLE` or `smallest`; None if even that does not fit.
    """
    fixed = memory.state + min(memory.gradients, memory.temporaries)
    scale = (available - fixed) / max(memory.total - fixed, 1)
    tokens = max(int(value * scale), 0)
    if tokens < smallest:
        return None
    return max(tokens // TOKEN_MULTIPLE * TOKEN_MULTIPLE, smallest)


def check_memory(run: Run) -> None:
    """Compile the train step for the largest batch; log the needed and the available memory.

    Raises:
      InputError: the device has less; the message proposes a smaller batch that fits.
    """
    spec = largest_spec(run.objective, run.dataset)
    with explain_out_of_memory(run.task, run.config, run.mesh):
        memory = step_memory(run, spec)
    if memory is None:
        log("memory    unknown: this device's compiler does not report it")
        return
    available = device_memory(run.mesh.local_devices[0])
    there = "" if available is None else f" of {format_bytes(available)}"
    parts = (
        f"{format_bytes(memory.state)} parameters and optimizer, "
        f"{format_bytes(memory.temporaries)} temporaries, {format_bytes(memory.batches)} batches"
    )
    largest = describe_spec(spec)
    log(f"memory    {format_bytes(memory.total)}{there} a device at {largest}: {parts}")
    if available is None or memory.total <= available:
        return
    longest = max(max(x.shape[1:2], default=1) for s in run.dataset.specs() for x in s.values())
    budget = run.task.batch_budget(
        run.config, row_multiple(run.mesh, run.config.optimizer.accumulation_steps), longest
    )
    smaller = propose_budget(memory, available, budget.value, budget.smallest)
    raise InputError(
        f"a step on {largest} needs {format_bytes(memory.total)} a device, which has "
        f"{format_bytes(available)}: {parts}; {smaller_batches(run.config, budget, smaller)}"
    )


def describe_spec(spec: BatchSpec) -> str:
    """`64 rows of inputs [24] and targets [30]`; segments and positions are left out."""
    arrays = [
        f"{name} {list(array.shape[1:])}" if array.shape[1:] else name
        for name, array in spec.items()
        if not name.endswith(("_segments", "_positions"))
    ]
    return f"{num_rows(spec):,} rows of {' and '.join(arrays)}"


def smaller_batches(config: Config, budget: BatchBudget, value: int | None) -> str:
    """What to change when memory runs out.

    Args:
      config: configuration of the run.
      budget: of the batches, from the task.
      value: value of the budget that fits; None if there is none.
    """
    smaller = (
        f"set {budget.field}={value} (now {budget.value})"
        if value is not None
        else f"lower data.max_length and {budget.field}, or shard the model with mesh.fsdp"
    )
    keeping = []
    if not getattr(config.model, "remat", True):
        keeping.append("model.remat=true")
    elif getattr(config.model, "remat_policy", "nothing") != "nothing":
        keeping.append("model.remat_policy=nothing")
    if 2 * budget.smallest <= budget.value:
        keeping.append(f"optimizer.accumulation_steps={2 * config.optimizer.accumulation_steps}")
    return f"{smaller}, or keep the batch with {', or '.join(keeping)}" if keeping else smaller


def explain_out_of_memory(task: Task, config: Config, mesh: Mesh) -> AbstractContextManager[None]:
    """Turn XLA's RESOURCE_EXHAUSTED in training into an `InputError` that says what to change.

    Args:
      task: task of the run.
      config: configuration of the run.
      mesh: that shards the rows.
    """
    budget = task.batch_budget(config, row_multiple(mesh, config.optimizer.accumulation_steps))
    half = budget.value // 2
    return advise_when_out_of_memory(
        f"{smaller_batches(config, budget, half if half >= budget.smallest else None)}; "
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
