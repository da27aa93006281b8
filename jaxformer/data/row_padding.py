"""The batches of one plan, with empty rows at their end until the devices can share them."""

from __future__ import annotations

import numpy as np

from jaxformer.data.batching import EMPTY_ROW, BatchLayout, BatchShape, PaddingEfficiency, Plan


class RowPadding:
    """A plan whose batches are those of another plan, row by row, with empty rows behind them.

    A run goes on with the batches that it began with: where other devices cannot share their rows,
    rows without a token fill them up. These add nothing to the loss and change no dropout mask.

    Args:
      plan: whose batches are meant.
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
        """Tokens of an epoch over the cells of its batches, the empty rows counted."""
        shares, planned = self._plan.padding_efficiency(), self._plan.shapes()
        sides = np.array(
            [(s.source_length, s.target_length, s.source_length + s.target_length) for s in planned]
        )
        epochs = np.array([s.batches_per_epoch for s in planned])
        cells = (epochs * [s.rows for s in planned]) @ sides
        padded = (epochs * [s.rows for s in self.shapes()]) @ sides
        return PaddingEfficiency(*(np.array(shares) * cells / padded).tolist())

    def rows(self, step: int) -> tuple[np.ndarray, int, int]:
        """What each row of step n holds, [B] with -1 for an empty row, and the lengths S and T."""
        rows, source_length, target_length = self._plan.rows(step)
        empty = np.full(self._padded(len(rows)) - len(rows), EMPTY_ROW, rows.dtype)
        return np.concatenate([rows, empty]), source_length, target_length

    def layout(self, step: int, row_slice: slice) -> BatchLayout:
        """Placement of the pairs of `row_slice` of step n."""
        low, high, _ = row_slice.indices(len(self.rows(step)[0]))
        layout = self._plan.layout(step, slice(low, high))
        return layout._replace(shape=(max(high - low, 0), *layout.shape[1:]))
