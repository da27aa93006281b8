"""The chosen attention against the reference before step one: values, gradients and leaks.

Fused attention kernels have returned NaN for some lengths and read over the edge of a segment. A
run that trains on such a kernel looks healthy for days.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.config import Config
from jaxformer.data.batching import BatchShape
from jaxformer.errors import InputError
from jaxformer.ops.attention_choice import Backend, choose, current_backend
from jaxformer.ops.attention_kernels import KERNELS, Kernel, reference_attention
from jaxformer.ops.attention_mask import ModelMasks
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import BATCH_SPEC, replicated
from jaxformer.training.checks.attention_probes import Probe, draw_masks, draw_probe, plant

# Largest difference over the largest value. Matrix units round float32 to TF32 or bfloat16.
TOLERANCES = {"float32": 1e-2, "float16": 1e-2, "bfloat16": 2e-2}
OUTPUT_LEAKS = "outputs that masked tokens change"
GRADIENT_LEAKS = "gradients of masked tokens"
EXACT = (OUTPUT_LEAKS, GRADIENT_LEAKS)  # not one number may differ, for the rest TOLERANCES


def check_attention(
    config: Config,
    shapes: Sequence[BatchShape],
    mesh: Mesh,
    *,
    evaluated: Sequence[BatchShape] = (),
    kernels: Mapping[str, Kernel] = KERNELS,
    backend: Backend | None = None,
) -> str:
    """Compare each attention of a run with the reference, on random rows of the run's shapes.

    Costs nothing where the reference is used anyway.

    Args:
      config: of the run.
      shapes: from the plan; only the lengths are used.
      mesh: on which the rows are cut.
      evaluated: shapes of the validation batches, which have one sentence a row; those that
        training has not are compared besides, for a kernel may do the ones and not the others.
      kernels: implementations by name.
      backend: None: the devices that JAX runs on.

    Returns:
      A line for the log: which attention uses which implementation, and why.

    Raises:
      InputError: the configured implementation cannot do this model, differs from the reference by
        more than rounding, returns NaN, or lets masked tokens through.
    """
    backend = (backend or current_backend())._replace(unplaced=False)  # `_compare` names the mesh
    started = time.monotonic()
    uses = {name: collections.Counter() for name in ModelMasks._fields}
    compared = 0
    model, parts = config.model, batch_parts(mesh)
    rows = parts * -(-4 // parts)
    all_packed = config.data.batching == "packed"
    cases = [(*pair, all_packed, True) for pair in _lengths_of(shapes)]
    known = {case[:3] for case in cases}
    cases += [
        (*pair, False, False) for pair in _lengths_of(evaluated) if (*pair, False) not in known
    ]
    for source, target, packed, trains in cases:
        rng = np.random.default_rng((source, target))
        lengths = {"encoder": (source,) * 2, "decoder": (target,) * 2, "cross": (target, source)}
        probes, fused = {}, {}
        masks = draw_masks(rng, rows, source, target, packed=packed)
        for name, attention_mask in masks._asdict().items():
            query, key = (
                jax.ShapeDtypeStruct((rows, n, model.num_heads, model.head_dim), model.dtype)
                for n in lengths[name]
            )
            call = model.attention_implementation, backend, query, key, attention_mask
            if trains:
                use = choose(*call, strict=True, dropout=model.attention_dropout_rate > 0.0)
                uses[name][f"{use.implementation} ({use.reason})"] += 1
            # Evaluation has no dropout, so that a kernel may do it where it cannot train.
            implementation = choose(*call).implementation
            if implementation != "reference":
                fused[name] = implementation
                probes[name] = draw_probe(rng, query, key, attention_mask)
        if fused:
            _compare(probes, fused, kernels, mesh)
            compared += len(fused)
    lines = "; ".join(f"{name} {_summary(used)}" for name, used in uses.items())
    if not compared:
        return f"attention {lines}"
    seconds = time.monotonic() - started
    return f"attention {lines}; {compared} compared with the reference in {seconds:.0f} s"


def _lengths_of(shapes: Sequence[BatchShape]) -> list[tuple[int, int]]:
    return sorted({(shape.source_length, shape.target_length) for shape in shapes})


def _summary(used: collections.Counter) -> str:
    if len(used) == 1:
        return next(iter(used))
    return ", ".join(f"{how} for {count} of the shapes" for how, count in used.items())


def run_kernels(kernels: dict[str, Kernel], probes: dict[str, Probe]) -> dict[str, Any]:
    """Output and gradients of each attention: `(out, (d_query, d_key, d_value))` by name."""
    results = {}
    for name, probe in probes.items():
        kernel, attention_mask = kernels[name], probe.attention_mask
        out, pull_back = jax.vjp(
            lambda *arrays, kernel=kernel, attention_mask=attention_mask: kernel(
                *arrays, attention_mask
            ),
            probe.query,
            probe.key,
            probe.value,
        )
        results[name] = out, pull_back(probe.cotangent.astype(out.dtype))
    return results


def measure(probe: Probe, wanted, plain, planted) -> dict[str, jax.Array]:
    """What can be wrong with a kernel, as numbers that are 0 for a perfect one.

    Args:
      probe: the arguments.
      wanted: output and gradients of the reference in float32.
      plain: those of the kernel.
      planted: those of the kernel with other hidden keys and values, and a cotangent that is 0
        where no query is watched.
    """

    def distance(x, y):
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        return jnp.max(jnp.abs(x - y)) / jnp.maximum(jnp.max(jnp.abs(y)), 1e-6)

    watched, hidden = probe.watched[..., None, None], probe.hidden[..., None, None]
    (out, gradients), (planted_out, planted_gradients) = plain, planted
    numbers = {"error of the output": distance(out, wanted[0])}
    for name, got, right in zip(("query", "key", "value"), gradients, wanted[1], strict=True):
        numbers[f"error of the gradient of the {name}"] = distance(got, right)
    numbers["error of the gradient of the query beside masked tokens"] = distance(
        jnp.where(watched, planted_gradients[0], 0), jnp.where(watched, gradients[0], 0)
    )
    numbers[OUTPUT_LEAKS] = jnp.sum(watched & (out != planted_out))
    numbers[GRADIENT_LEAKS] = sum(jnp.sum(hidden & (x != 0)) for x in planted_gradients[1:])
    return numbers


def _compare(
    probes: dict[str, Probe],
    implementations: dict[str, str],
    kernels: Mapping[str, Kernel],
    mesh: Mesh,
) -> None:
    """Raise `InputError` if one of these attentions is not that of the reference."""
    chosen = {name: kernels[implementation] for name, implementation in implementations.items()}

    @jax.jit
    def run(probes):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return run_kernels(chosen, probes)

    @jax.jit
    def run_reference(probes):
        def widen(x):
            return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x

        wide = jax.tree.map(widen, probes)
        return run_kernels(dict.fromkeys(probes, reference_attention), wide)

    def compare(*trees):
        return {name: measure(*(tree[name] for tree in trees)) for name in probes}

    placed = _place(probes, mesh)
    planted = _place({name: plant(probe) for name, probe in probes.items()}, mesh)
    with jax.default_matmul_precision("highest"):
        wanted = run_reference(placed)
    try:
        results = run(placed), run(planted)
        report = jax.jit(compare, out_shardings=replicated(mesh))(placed, wanted, *results)
        report = jax.device_get(report)
    except Exception as error:  # a kernel that cannot be compiled raises what it likes
        raise _failure(implementations, str(error)) from error
    wrong = []
    for name, probe in probes.items():
        queries, keys = probe.query.shape[1], probe.key.shape[1]
        tolerance = TOLERANCES[probe.query.dtype.name]
        for what, value in report[name].items():
            limit = 0.0 if what in EXACT else tolerance
            if not value <= limit:  # NaN is not either
                wrong.append(
                    f"{name} attention with {queries} queries and {keys} keys, {what}: "
                    f"{value:.3g}, allowed {limit:g}"
                )
    if wrong:
        raise _failure(implementations, "; ".join(wrong))


def _place(probes: dict[str, Probe], mesh: Mesh) -> dict[str, Probe]:
    """The probes on the mesh, cut as the arrays of a step are."""

    def place(x):
        if x.ndim < 4:
            return jax.device_put(x, NamedSharding(mesh, BATCH_SPEC))
        heads = "tensor" if x.shape[2] % mesh.shape["tensor"] == 0 else None
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*BATCH_SPEC, None, heads)))

    return jax.tree.map(place, probes)


def _failure(implementations: dict[str, str], what: str) -> InputError:
    names = ", ".join(sorted(set(implementations.values())))
    return InputError(
        f"{names} is not usable here: {what}; start again with "
        "--config.model.attention_implementation=reference"
    )
