"""Batches of a dataset, read ahead of the train step."""

from __future__ import annotations

import sys

from jaxformer.data.dataset import Batch, Dataset, num_rows
from jaxformer.errors import InputError
from jaxformer.parallel.shares import WHOLE_BATCH, BatchShare

READ_AHEAD = 4  # batches at least, and at least two per reader


class StepSource:
    """Random access to the batches from `start_step` on; element i is step start_step + i."""

    def __init__(self, dataset: Dataset, share: BatchShare, start_step: int):
        self._dataset, self._share, self._start_step = dataset, share, start_step

    def __len__(self) -> int:
        return sys.maxsize - self._start_step

    def __getitem__(self, index: int) -> Batch:
        return self._dataset.batch(self._start_step + int(index), self._share)


class BatchLoader:
    """Endless iterator over this process's rows of the batches of step start_step, + 1, ...

    Its whole state is `step`: a new loader with `start_step=step` continues with the same batches,
    on any number of processes. Grain's threads make the batches in advance.

    Args:
      dataset: dataset of the training split.
      share: the rows of each batch that this process takes.
      start_step: first step to deliver.

    Raises:
      InputError: the processes cannot share the rows of a batch equally.
      RuntimeError: from `next`, if a worker of the dataset failed or ended.
    """

    def __init__(self, dataset: Dataset, share: BatchShare = WHOLE_BATCH, start_step: int = 0):
        import grain

        for spec in dataset.specs():
            if num_rows(spec) % share.parts:
                raise InputError(
                    f"a batch of {num_rows(spec)} rows cannot be divided into {share.parts} parts; "
                    f"plan it with a row_multiple that {share.parts} divides"
                )
        self.step = self._start_step = start_step
        self._dataset = dataset
        dataset.open()
        source = StepSource(dataset, share, start_step)
        options = grain.ReadOptions(
            num_threads=dataset.num_readers,
            prefetch_buffer_size=max(READ_AHEAD, 2 * dataset.num_readers),
        )
        self._batches = iter(grain.MapDataset.source(source).to_iter_dataset(options))

    def __iter__(self) -> BatchLoader:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self.step += 1
        return batch

    def seek(self, step: int) -> None:
        """Deliver the batch of `step` next; `step >= start_step`."""
        self._batches.set_state({"next_index": step - self._start_step})
        self.step = step

    def close(self) -> None:
        """End the reading threads and the dataset's workers; the loader ends with them."""
        self._batches.close()
        self._dataset.close()
