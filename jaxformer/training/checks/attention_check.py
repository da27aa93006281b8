"""Compare attention with the reference before step one: values, gradients and leaks.

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

from jaxformer.data.dataset import BatchSpec
from jaxformer.errors import InputError
from jaxformer.ops.attention_choice import Backend, choose, current_backend
from jaxformer.ops.attention_kernels import KERNELS, Kernel, reference_attention
from jaxformer.ops.attention_mask import AttentionSite
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import BATCH_SPEC, replicated
from jaxformer.tasks.task import Objective
from jaxformer.training.checks.attention_probes import (
    Probe,
    draw_mask,
    draw_probe,
    plant,
    site_arrays,
)

# Largest difference over the largest value. Matrix units round float32 to TF32 or bfloat16.
TOLERANCES = {"float32": 1e-2, "float16": 1e-2, "bfloat16": 2e-2}
OUTPUT_LEAKS = "outputs that masked tokens change"
GRADIENT_LEAKS = "gradients of masked tokens"
EXACT = (OUTPUT_LEAKS, GRADIENT_LEAKS)  # no number may differ; all else has TOLERANCES


def check_attention(
    objective: Objective,
    specs: Sequence[BatchSpec],
    mesh: Mesh,
    *,
    evaluated: Sequence[BatchSpec] = (),
    kernels: Mapping[str, Kernel] = KERNELS,
    backend: Backend | None = None,
) -> str:
    """Compare each attention of a run with the reference, on random rows of the run's shapes.

    It costs nothing if the reference is used anyway.

    Args:
      objective: lists the attentions of a batch.
      specs: specs of the training batches; only the lengths are used.
      mesh: that shards the rows.
      evaluated: specs of the evaluation batches. An attention that only they have is compared too:
        a kernel may support one and not the other.
      kernels: implementations by name.
      backend: None: the devices that JAX runs on.

    Returns:
      A line for the log: which attention uses which implementation, and why; empty for a model
      without attention.

    Raises:
      InputError: the configured implementation cannot run this model, differs from the reference by
        more than rounding, returns NaN, or lets masked tokens through.
    """
    backend = (backend or current_backend())._replace(unplaced=False)  # `_compare` names the mesh
    started = time.monotonic()
    uses: dict[str, collections.Counter] = {}
    parts = batch_parts(mesh)
    rows = parts * -(-4 // parts)
    trained = {tuple(objective.attention_sites(spec)) for spec in specs}
    others = {tuple(objective.attention_sites(spec)) for spec in evaluated} - trained
    compared: set[AttentionSite] = set()
    for sites in (*sorted(trained), *sorted(others)):
        probes, fused = {}, {}
        for site in sites:
            mask = draw_mask(np.random.default_rng((site.queries, site.keys)), site, rows)
            call = site.implementation, backend, *site_arrays(site, rows), mask
            if sites in trained:
                use = choose(*call, strict=True, dropout=site.dropout)
                used = uses.setdefault(site.name, collections.Counter())
                used[f"{use.implementation} ({use.reason})"] += 1
            # Evaluation has no dropout, so a kernel may support it but not training.
            implementation = choose(*call).implementation
            if implementation != "reference" and site not in compared:
                rng = np.random.default_rng((site.queries, site.keys))
                fused[site.name], probes[site.name] = implementation, draw_probe(rng, site, rows)
                compared.add(site)
        if fused:
            _compare(probes, fused, kernels, mesh)
    if not uses:
        return ""
    lines = "; ".join(f"{name} {_summary(used)}" for name, used in uses.items())
    if not compared:
        return f"attention {lines}"
    seconds = time.monotonic() - started
    return f"attention {lines}; {len(compared)} compared with the reference in {seconds:.0f} s"


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
    """Errors of a kernel, as numbers that are 0 for a perfect one.

    Args:
      probe: arguments of the attention.
      wanted: output and gradients of the reference in float32.
      plain: those of the kernel.
      planted: those of the kernel for `plant(probe)`: other hidden keys and values, and a
        cotangent that is 0 where no query is watched.

    Returns:
      Scalars by the name of the error.
    """

    def distance(x, y):
        x, y = x.astype(jnp.float32), y.astype(jnp.float32)
        return jnp.max(jnp.abs(x - y)) / jnp.maximum(jnp.max(jnp.abs(y)), 1e-6)

    watched, hidden = probe.watched[..., None, None], probe.hidden[..., None, None]
    (out, gradients), (planted_out, planted_gradients) = plain, planted
    numbers = {"error of the output": distance(out, wanted[0])}
    for name, got, right in zip(("query", "key", "value"), gradients, wanted[1], strict=True):
        numbers[f"error of the gradient of the {name}"] = distance(got, right)
    numbers["error of the gradient of the query next to masked tokens"] = distance(
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
    """Raise `InputError` if one of these attentions differs from the reference."""
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
    except Exception as error:  # a kernel that does not compile may raise anything
        raise _failure(implementations, str(error)) from error
    wrong = []
    for name, probe in probes.items():
        queries, keys = probe.query.shape[1], probe.key.shape[1]
        tolerance = TOLERANCES[probe.query.dtype.name]
        for what, value in report[name].items():
            limit = 0.0 if what in EXACT else tolerance
            if not value <= limit:  # also true of NaN
                wrong.append(
                    f"{name} attention with {queries} queries and {keys} keys, {what}: "
                    f"{value:.3g}, allowed {limit:g}"
                )
    if wrong:
        raise _failure(implementations, "; ".join(wrong))


def _place(probes: dict[str, Probe], mesh: Mesh) -> dict[str, Probe]:
    """The probes on the mesh, sharded like the arrays of a step."""

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
