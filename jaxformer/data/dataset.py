"""The contract of data: batches that are pure functions of the step, and specs of their arrays."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from jaxformer.data.shuffling import random_words
from jaxformer.errors import InputError, check_range
from jaxformer.parallel.shares import WHOLE_BATCH, BatchShare

Batch = dict[str, np.ndarray]


class ArraySpec(NamedTuple):
    """Shape and dtype of one array of a global batch; its first axis is the rows."""

    shape: tuple[int, ...]
    dtype: str = "int32"


BatchSpec = Mapping[str, ArraySpec]  # by the names of the arrays


def num_rows(spec: BatchSpec) -> int:
    """Rows of a global batch."""
    return next(iter(spec.values())).shape[0]


class Dataset(Protocol):
    """The batches of one split.

    Attributes:
      steps_per_epoch: batches that contain every example once.
      num_readers: threads that may call `batch` at the same time.
    """

    steps_per_epoch: int
    num_readers: int = 1

    @abstractmethod
    def specs(self) -> list[BatchSpec]:
        """Every spec that a batch can have; each is compiled once."""

    @abstractmethod
    def batch(self, step: int, share: BatchShare = WHOLE_BATCH) -> Batch:
        """The rows of `share` of the global batch of a step, a pure function of both.

        Args:
          step: from 0, counted across epochs.
          share: part of the rows; the rows of a batch are a multiple of `share.parts`.
        """

    def open(self) -> None:
        """Start background workers; called once before the first `batch`."""

    def close(self) -> None:
        """Stop what `open` started."""


class ArrayDataset(Dataset):
    """Batches of examples held in memory as arrays, reshuffled each epoch.

    Every example appears once an epoch. Rows without an example hold zeros, also in `weights`,
    float32 [B], which is 1 for examples.

    Args:
      arrays: by name, each [N, ...] with one entry per example.
      rows: B, examples of a batch.
      seed: random seed for shuffling.
      shuffle: False: in the order of the arrays, for evaluation.

    Raises:
      InputError: the arrays are empty or differ in N.
    """

    def __init__(
        self, arrays: Mapping[str, np.ndarray], *, rows: int, seed: int = 0, shuffle: bool = True
    ):
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) != 1 or 0 in lengths.values() or "weights" in arrays:
            raise InputError(
                f"arrays of {lengths} examples: give the same number for each, at least 1, and no "
                "array named weights"
            )
        check_range("rows", rows, 1)
        self._arrays, self._rows = dict(arrays), rows
        self._seed, self._shuffle = seed, shuffle
        self.num_examples = next(iter(lengths.values()))
        self.steps_per_epoch = -(-self.num_examples // rows)

    def specs(self) -> list[BatchSpec]:
        specs = {
            name: ArraySpec((self._rows, *array.shape[1:]), array.dtype.name)
            for name, array in self._arrays.items()
        }
        return [specs | {"weights": ArraySpec((self._rows,), "float32")}]

    def batch(self, step: int, share: BatchShare = WHOLE_BATCH) -> Batch:
        epoch, index = divmod(step, self.steps_per_epoch)
        order = np.arange(self.num_examples)
        if self._shuffle:
            words = random_words(self._seed, (1, epoch), self.num_examples)
            order = np.argsort(words, kind="stable")
        chosen = np.full(self._rows, -1)
        filled = order[index * self._rows : (index + 1) * self._rows]
        chosen[: len(filled)] = filled
        chosen = np.concatenate([chosen[rows] for rows in share.slices(self._rows)])
        there = chosen >= 0
        batch = {name: array[np.maximum(chosen, 0)] for name, array in self._arrays.items()}
        for array in batch.values():
            array[~there] = 0
        return batch | {"weights": there.astype(np.float32)}
