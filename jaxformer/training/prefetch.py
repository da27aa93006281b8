"""Send the next batch to the devices before the step that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from jaxformer.data.dataset import Batch
from jaxformer.parallel.sharding import shard_batch


class DeviceBatches:
    """Batches on the mesh, at most one ahead of its step.

    A run that stops with a fetched batch loses nothing: batches are a function of the step, so the
    next start fetches it again.

    Args:
      batches: this process's rows of the batches, in the order of the steps.
      mesh: from `make_mesh`.
    """

    def __init__(self, batches: Iterator[Batch], mesh: Mesh):
        self._batches, self._mesh = batches, mesh
        self._fetched: dict[str, jax.Array] | None = None

    def take(self) -> dict[str, jax.Array]:
        """The next batch: the fetched one if there is one."""
        self.fetch()
        batch, self._fetched = self._fetched, None
        return batch

    def fetch(self) -> None:
        """Start sending the next batch to the devices, unless it was sent already."""
        if self._fetched is None:
            self._fetched = shard_batch(next(self._batches), self._mesh)
