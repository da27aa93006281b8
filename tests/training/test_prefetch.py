"""Batches are sent one ahead, and none is lost or taken twice."""

import jax
import numpy as np

from jaxformer.config import MeshConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import batch_sharding
from jaxformer.training.prefetch import DeviceBatches


def test_at_most_one_batch_is_ahead():
    made = []

    def batches():
        for step in range(9):
            made.append(step)
            yield {"inputs": np.full((8, 2), step, np.int32)}

    mesh = make_mesh(MeshConfig())
    ahead = DeviceBatches(batches(), mesh)
    assert made == []
    taken = [ahead.take()]
    assert made == [0]
    ahead.fetch()
    ahead.fetch()
    assert made == [0, 1]
    taken += [ahead.take(), ahead.take()]
    assert made == [0, 1, 2]
    assert [int(batch["inputs"][0, 0]) for batch in taken] == [0, 1, 2]
    assert taken[1]["inputs"].sharding == batch_sharding(mesh)
    assert isinstance(taken[1]["inputs"], jax.Array)
