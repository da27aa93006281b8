"""Which rows of every batch a process reads; free of JAX, so that `data` may import it."""

from __future__ import annotations

from typing import NamedTuple


class BatchShare(NamedTuple):
    """The rows of a global batch that the devices of one process hold.

    A batch is split into `parts` equal parts. On a pod the parts of a process need not be adjacent,
    and where tensor parallelism spans processes, several of them hold the same part.

    Attributes:
      parts: number of parts of a batch.
      runs: `(first, end)` of each run of adjacent parts held here, ascending.
    """

    parts: int
    runs: tuple[tuple[int, int], ...]

    @classmethod
    def of_parts(cls, parts: int, here: set[int]) -> BatchShare:
        """The share that consists of the parts numbered `here`."""
        runs: list[tuple[int, int]] = []
        for part in sorted(here):
            if runs and runs[-1][1] == part:
                runs[-1] = runs[-1][0], part + 1
            else:
                runs.append((part, part + 1))
        return cls(parts, tuple(runs))

    def slices(self, rows: int) -> list[slice]:
        """The rows held here of a global batch of `rows` rows, a multiple of `parts`."""
        return [
            slice(first * rows // self.parts, end * rows // self.parts) for first, end in self.runs
        ]

    def global_rows(self, rows: int) -> int:
        """Rows of the global batch if this process holds `rows` of them."""
        return rows * self.parts // sum(end - first for first, end in self.runs)

    def local_row(self, row: int, rows: int) -> int:
        """Local index of row `row` of a global batch of `rows` rows.

        Raises:
          IndexError: another process holds the row.
        """
        before = 0
        for held in self.slices(rows):
            if held.start <= row < held.stop:
                return before + row - held.start
            before += held.stop - held.start
        raise IndexError(f"row {row} of {rows} belongs to another process")


WHOLE_BATCH = BatchShare(1, ((0, 1),))
