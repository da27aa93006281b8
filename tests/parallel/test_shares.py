"""The rows of a process, as its devices lie on the mesh."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.parallel.mesh import batch_share
from jaxformer.parallel.shares import WHOLE_BATCH, BatchShare


def mesh_of(processes, shape):
    """A mesh whose devices belong to `processes`, in the order [data, fsdp, tensor]."""
    devices = np.array([SimpleNamespace(process_index=p) for p in processes]).reshape(shape)
    return SimpleNamespace(
        devices=devices, shape=dict(zip(("data", "fsdp", "tensor"), shape, strict=True))
    )


@pytest.mark.parametrize(
    ("processes", "shape", "parts", "runs"),
    [
        ([0] * 4 + [1] * 4, (8, 1, 1), 8, {0: ((0, 4),), 1: ((4, 8),)}),
        ([0] * 4 + [1] * 4, (2, 4, 1), 8, {0: ((0, 4),), 1: ((4, 8),)}),
        # tensor parallelism inside a process, and across two
        ([0] * 4 + [1] * 4, (2, 2, 2), 4, {0: ((0, 2),), 1: ((2, 4),)}),
        ([0] * 4 + [1] * 4, (1, 1, 8), 1, {0: ((0, 1),), 1: ((0, 1),)}),
        # hosts of a torus hold blocks
        ([0, 0, 1, 1, 0, 0, 1, 1], (8, 1, 1), 8, {0: ((0, 2), (4, 6)), 1: ((2, 4), (6, 8))}),
    ],
)
def test_the_rows_of_each_process(processes, shape, parts, runs):
    mesh = mesh_of(processes, shape)
    for process, expected in runs.items():
        assert batch_share(mesh, process) == BatchShare(parts, expected)


def test_rows_lie_one_below_the_other():
    share = BatchShare.of_parts(8, {0, 1, 4, 5})
    assert share.slices(16) == [slice(0, 4), slice(8, 12)]
    assert share.global_rows(8) == 16
    assert [share.local_row(row, 16) for row in (0, 3, 8, 11)] == [0, 3, 4, 7]
    with pytest.raises(IndexError, match="row 4 of 16 "):
        share.local_row(4, 16)


def test_one_process_has_all():
    assert WHOLE_BATCH.slices(12) == [slice(0, 12)]
    assert WHOLE_BATCH.global_rows(12) == 12 and WHOLE_BATCH.local_row(7, 12) == 7
