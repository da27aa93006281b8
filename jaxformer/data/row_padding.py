"""The batches of another plan, padded with empty rows that the devices can split."""

from __future__ import annotations

import numpy as np

from jaxformer.data.batching import BatchLayout, BatchShape, PaddingEfficiency, Plan


class RowPadding:
    """A plan with the batches of another plan, row by row, followed by empty rows.

    A resumed run keeps its batches. If the new devices cannot split the rows evenly, rows without
    a token fill each batch. They add nothing to the loss and change no dropout mask.

    Args:
      plan: plan to pad.
      row_multiple: the rows of every batch become a multiple of it.
    """

    def __init__(self, plan: Plan, row_multiple: int):
        self._plan, self._row_multiple = plan, row_multiple
        self.steps_per_epoch = plan.steps_per_epoch

    def _padded(self, rows: int) -> int:
        return -(-rows // self._row_multiple) * self._row_multiple

    def shapes(self) -> list[BatchShape]:
        """The shapes that are compiled."""
        return [shape._replace(rows=self._padded(shape.rows)) for shape in self._plan.shapes()]

    def padding_efficiency(self) -> PaddingEfficiency:
        """Tokens of an epoch over the cells of its batches, empty rows included."""
        shares, planned = self._plan.padding_efficiency(), self._plan.shapes()
        sides = np.array(
            [(s.source_length, s.target_length, s.source_length + s.target_length) for s in planned]
        )
        epochs = np.array([s.batches_per_epoch for s in planned])
        cells = (epochs * [s.rows for s in planned]) @ sides
        padded = (epochs * [s.rows for s in self.shapes()]) @ sides
        return PaddingEfficiency(*(np.array(shares) * cells / padded).tolist())

    def shape(self, step: int) -> tuple[int, int, int]:
        """B, S and T of step n, empty rows included."""
        rows, *lengths = self._plan.shape(step)
        return self._padded(rows), *lengths

    def layout(self, step: int, row_slice: slice) -> BatchLayout:
        """Placement of the pairs of `row_slice` of step n."""
        low, high, _ = row_slice.indices(self.shape(step)[0])
        layout = self._plan.layout(step, slice(low, high))
        return layout._replace(shape=(max(high - low, 0), *layout.shape[1:]))
