"""Where each array lives on the mesh: two tables, and the functions that read them.

A parameter's path selects its logical axes, and these select mesh axes. The modules know neither;
the model only calls `shard_like_batch` after embedding lookups.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxformer.parallel.mesh import DATA, FSDP, TENSOR, batch_share

# Exactly one pattern must match the whole path of each parameter.
PARAMETER_AXES = (
    (r"(token|source|target)_embedding/embedding", ("vocab", "embed")),
    (r"(source|target)_positions/embedding", ("position", "embed")),
    (r"output_projection/kernel", ("embed", "vocab")),
    (r".*_attention/(query|key|value)/kernel", ("embed", "heads")),
    (r".*_attention/(query|key|value)/bias", ("heads",)),
    (r".*_attention/out/kernel", ("heads", "embed")),
    (r".*_attention/out/bias", ("embed",)),
    (r".*feed_forward/(inner|gate)/kernel", ("embed", "ff")),
    (r".*feed_forward/(inner|gate)/bias", ("ff",)),
    (r".*feed_forward/outer/kernel", ("ff", "embed")),
    (r".*feed_forward/outer/bias", ("embed",)),
    (r".*_norm/(scale|bias)", ("embed",)),
)

_other_parameter_axes: list[tuple[str, tuple[str | None, ...]]] = []

LOGICAL_TO_MESH = {
    "embed": FSDP,
    "vocab": TENSOR,
    "heads": TENSOR,
    "ff": TENSOR,
    "position": None,
    "layers": None,
}

BATCH_AXES = (DATA, FSDP)
BATCH_SPEC = PartitionSpec(BATCH_AXES)


def shard_like_batch(embedded: jax.Array) -> jax.Array:
    """Shard embedded tokens by rows, as the batch is.

    Looking up rows of a table sharded by width gives tokens sharded by width. Without constraints
    XLA carries that sharding into the following layers, or copies the array to all devices. The two
    constraints here make it one exchange within `fsdp`, and what follows stays sharded by rows.

    Args:
      embedded: `[B, T, D]`.

    Returns:
      The same values, resharded. Without a mesh in context (`jax.sharding.use_abstract_mesh`), or
      if its axes do not divide B and D, `embedded` itself.
    """
    mesh, width = jax.sharding.get_abstract_mesh(), LOGICAL_TO_MESH["embed"]
    automatic = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if any(automatic.get(axis) != AxisType.Auto for axis in BATCH_AXES):
        return embedded  # another mesh, or inside a `shard_map`
    rows = math.prod(mesh.shape[axis] for axis in BATCH_AXES)
    if mesh.shape[width] == 1 or embedded.shape[0] % rows or embedded.shape[-1] % mesh.shape[width]:
        return embedded
    others = tuple(axis for axis in BATCH_AXES if axis != width)
    looked_up = jax.lax.with_sharding_constraint(embedded, PartitionSpec(others, None, width))
    return jax.lax.with_sharding_constraint(looked_up, BATCH_SPEC)


def path_name(path: tuple[Any, ...]) -> str:
    """`decoder/layer_0/...` of a JAX key path."""
    return "/".join(
        str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path
    )


def add_parameter_axes(rules: Iterable[tuple[str, tuple[str | None, ...]]]) -> None:
    """Add rules to `PARAMETER_AXES` for models of another package, in this process.

    Args:
      rules: pattern of a path and the logical axes of its parameters; None: not sharded.
    """
    _other_parameter_axes.extend(rule for rule in rules if rule not in _other_parameter_axes)


def logical_axes(path: str, rank: int) -> tuple[str | None, ...]:
    """Logical axes of the parameter at `path`.

    Raises:
      ValueError: no pattern matches, several do, or the rank differs.
    """
    rules = (*PARAMETER_AXES, *_other_parameter_axes)
    matches = [axes for pattern, axes in rules if re.fullmatch(pattern, path)]
    if len(matches) != 1:
        raise ValueError(
            f"parameter {path!r} matches {len(matches)} rules of PARAMETER_AXES, not one"
        )
    axes = matches[0]
    if re.search(r"/layers/", path):
        axes = ("layers", *axes)
    if len(axes) != rank:
        raise ValueError(f"parameter {path!r} has rank {rank}, its rule says {axes}")
    return axes


def parameter_shardings(params: Any, mesh: Mesh) -> Any:
    """A `NamedSharding` for each parameter.

    An axis that the mesh axis does not divide is not sharded.

    Args:
      params: tree of arrays or `ShapeDtypeStruct`s, with the modules' names.
      mesh: from `make_mesh`.
    """

    def sharding(path, leaf):
        axes = logical_axes(path_name(path), leaf.ndim)
        names = [axis and LOGICAL_TO_MESH[axis] for axis in axes]
        spec = [
            name if name is not None and size % mesh.shape[name] == 0 else None
            for name, size in zip(names, leaf.shape, strict=True)
        ]
        return NamedSharding(mesh, PartitionSpec(*spec))

    return jax.tree_util.tree_map_with_path(sharding, params)


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """A tree of shapes as `ShapeDtypeStruct`s with shardings."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def place_like_parameters(params: Any, mesh: Mesh) -> Any:
    """Parameters as `ShapeDtypeStruct`s with their shardings on the mesh."""
    return with_shardings(params, parameter_shardings(params, mesh))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of a value replicated on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of batch rows, over `data` and `fsdp`."""
    return NamedSharding(mesh, BATCH_SPEC)


def shard_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Put this process's rows of a global batch on its devices.

    Args:
      batch: arrays `[rows of this process, ...]`, the rows of `batch_share` in order.
      mesh: from `make_mesh`.

    Returns:
      Global arrays whose first axis is sharded over `data` and `fsdp`.
    """
    if jax.process_count() == 1:
        return jax.make_array_from_process_local_data(batch_sharding(mesh), batch)
    share = _share(mesh)

    def place(array: np.ndarray) -> jax.Array:
        rows = share.global_rows(len(array))

        def held(index: tuple[slice, ...]) -> np.ndarray:
            low, high, _ = index[0].indices(rows)
            first = share.local_row(low, rows)
            return array[first : first + high - low]

        shape = (rows, *array.shape[1:])
        return jax.make_array_from_callback(shape, batch_sharding(mesh), held)

    return {name: place(array) for name, array in batch.items()}


def shard_rows(array: np.ndarray, mesh: Mesh) -> jax.Array:
    """Shard an array `[rows, ...]` that every process holds in full by rows over the mesh."""
    if jax.process_count() == 1:
        return jax.device_put(array, batch_sharding(mesh))
    return jax.make_array_from_callback(array.shape, batch_sharding(mesh), array.__getitem__)


def fetch(tree: Any, mesh: Mesh | None) -> Any:
    """Fetch a tree of global arrays into NumPy, in every process; `mesh` None: one device's."""
    if mesh is not None and jax.process_count() > 1:
        tree = _gather(mesh)(tree)
    return jax.device_get(tree)


_share = functools.cache(batch_share)


@functools.cache
def _gather(mesh: Mesh):
    return jax.jit(lambda tree: tree, out_shardings=replicated(mesh))
