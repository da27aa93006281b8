"""The next batch is on the devices before the step that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from jaxformer.data.batching import Batch
from jaxformer.parallel.sharding import shard_batch


class DeviceBatches:
    """Batches on the mesh, at most one ahead of the step that takes it.

    Nothing is lost when a run stops with a batch fetched: the batches follow from the step, so the
    next start begins with this one.

    Args:
      batches: this process's rows of the batches, in the order of the steps.
      mesh: from `make_mesh`.
    """

    def __init__(self, batches: Iterator[Batch], mesh: Mesh):
        self._batches, self._mesh = batches, mesh
        self._fetched: dict[str, jax.Array] | None = None

    def take(self) -> dict[str, jax.Array]:
        """The next batch: the fetched one, if there is one."""
        self.fetch()
        batch, self._fetched = self._fetched, None
        return batch

    def fetch(self) -> None:
        """Send the next batch to the devices, unless it is there; does not wait for them."""
        if self._fetched is None:
            self._fetched = shard_batch(next(self._batches), self._mesh)
