"""Subword regularisation: training sentences are segmented anew each time they are read.

The segmentation of a sentence at step n is a pure function of (corpus, config, seed, n, pair) and
never longer than the room the plan reserved for it. The plan is made once, from the stored lengths
and from how much longer sampled ones are.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from jaxformer.config import Config, DataConfig
from jaxformer.data.batching import BatchLayout
from jaxformer.data.corpus import TokenizedCorpus
from jaxformer.data.packing import starts_in_row
from jaxformer.data.segmenters import Segmenter, make_segmenter
from jaxformer.data.shuffling import random_words
from jaxformer.data.tokenizers import Tokenizer

DRAWS = 3  # segmentations tried for a sentence, each milder, before falling back to the stored one
SAMPLED_PAIRS = 1000  # segmented once, to measure how much longer sentences get
UNLIMITED = 2**40  # tokens
STREAM = 16  # of the random words; plans use lower numbers
# Standard deviations of room above the mean. Pairs of a packed row share its room, so their
# deviations cancel; a bucket's row holds one pair.
BUCKET_MARGIN, PACKED_MARGIN = 0.25, 0.0


class Sentences(NamedTuple):
    """One side of some pairs as a flat array; every sentence ends in EOS."""

    ids: np.ndarray  # [tokens]
    lengths: np.ndarray  # [N] int64, EOS included


class SamplingTask(NamedTuple):
    """The sentences of one side of a batch, and their room."""

    side: int  # 0: source, 1: target
    width: int  # tokens of a row
    ids: np.ndarray  # [tokens] int64, the stored segmentations
    lengths: np.ndarray  # [N] int64, EOS included
    planned: np.ndarray  # [N] int64 tokens the plan reserves, at least `lengths`
    rows: np.ndarray  # [N] int64, ascending
    seeds: np.ndarray  # [N] int64, from 0 to 2^63 - 1


class SampledSentences(NamedTuple):
    """The result of a `SamplingTask`."""

    ids: np.ndarray  # [tokens] int64
    lengths: np.ndarray  # [N] int64, EOS included
    draws: np.ndarray  # [N] int64: 0: the first draw fitted, ..., DRAWS: the stored one was used


class Growth(NamedTuple):
    """How much longer sampled sentences are than stored ones of n pieces."""

    mean: float  # additional pieces per piece
    spread: float  # standard deviation of the additional pieces, divided by sqrt(n)


class SubwordSampler:
    """Random segmentations of the pairs of a corpus, and the lengths to plan them with.

    A draw too long for its room is repeated with a milder rate; after `DRAWS` attempts the stored
    segmentation is used. Sampled sentences are therefore slightly shorter than the rate implies.

    Args:
      corpus: the tokenised pairs.
      tokenizers: of the source and the target.
      rate: tokenizer.sampling_rate, see `BpeDropout` and `UnigramSampling`; 0: nothing changes.
      config: gives batching and max_length.
      seed: of the run.

    Attributes:
      tokenizers, rate: as given.
      growth: (source, target), measured on SAMPLED_PAIRS of the corpus.
      fill: (source, target), mean share of the planned tokens that sampled sentences use.

    Raises:
      InputError: a tokenizer's model has only one segmentation of a text.
    """

    def __init__(
        self,
        corpus: TokenizedCorpus,
        tokenizers: tuple[Tokenizer, Tokenizer],
        rate: float,
        config: DataConfig,
        seed: int,
    ):
        self.tokenizers, self.rate = tokenizers, rate
        self._segmenters = make_segmenters(*tokenizers)
        self._seed, self._max_length = seed, config.max_length
        self._margin = PACKED_MARGIN if config.batching == "packed" else BUCKET_MARGIN
        pairs = np.unique(random_words(seed, (STREAM,), SAMPLED_PAIRS) % np.uint64(len(corpus)))
        lengths = [self._measure(corpus, side, pairs.astype(np.int64)) for side in (0, 1)]
        self.growth = tuple(growth_of(*both) for both in lengths)
        self.fill = tuple(
            min(float(sampled.sum() / self.planned_lengths(side, stored).sum()), 1.0)
            for side, (stored, sampled) in enumerate(lengths)
        )

    def planned_lengths(self, side: int, lengths: np.ndarray) -> np.ndarray:
        """Tokens to reserve for sentences of `lengths` stored tokens, EOS included; [N] int32.

        At least `lengths`; beyond that, at most data.max_length.
        """
        if not len(lengths):
            return np.zeros(0, np.int32)
        stored = np.arange(int(lengths.max()) + 1)
        pieces = np.maximum(stored - 1, 0)
        mean, spread = self.growth[side]
        more = np.ceil(mean * pieces + self._margin * spread * np.sqrt(pieces)).astype(np.int64)
        planned = np.maximum(np.minimum(stored + more, self._max_length), stored)
        return planned.astype(np.int32)[lengths]

    def tasks(
        self, layout: BatchLayout, sides: tuple[Sentences, Sentences], step: int
    ) -> list[SamplingTask]:
        """The sampling tasks for the batch of step n.

        Args:
          layout: of the batch.
          sides: the stored segmentations of `layout.pairs`, source and target.
          step: n.

        Returns:
          A task for the source's sentences and one for the target's.
        """
        return [
            SamplingTask(
                side=side,
                width=layout.shape[1 + side],
                ids=sentences.ids.astype(np.int64),
                lengths=sentences.lengths,
                planned=self.planned_lengths(side, sentences.lengths).astype(np.int64),
                rows=layout.rows,
                seeds=sentence_seeds(self._seed, step, side, layout.pairs),
            )
            for side, sentences in enumerate(sides)
        ]

    def run(self, tasks: list[SamplingTask]) -> list[SampledSentences]:
        """Sample each task in this thread."""
        return [sample_sentences(self._segmenters[task.side], self.rate, task) for task in tasks]

    def describe(self) -> str:
        """One line for the log."""
        kinds = " and ".join(dict.fromkeys(t.model_type for t in self.tokenizers))
        return (
            f"{kinds} segmentations sampled at rate {self.rate:g}: source "
            f"{self.growth[0].mean:.0%} longer on average, target {self.growth[1].mean:.0%}"
        )

    def _measure(
        self, corpus: TokenizedCorpus, side: int, pairs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Stored and sampled lengths of `pairs`, [N] each."""
        lines = [corpus.pair(pair)[side] for pair in pairs]
        stored = np.fromiter(map(len, lines), np.int64, len(lines))
        task = SamplingTask(
            side=side,
            width=UNLIMITED,
            ids=np.concatenate(lines).astype(np.int64),
            lengths=stored,
            planned=stored,
            rows=np.arange(len(lines)),
            seeds=sentence_seeds(self._seed, 0, side, pairs),
        )
        return stored, self.run([task])[0].lengths


def make_segmenters(source: Tokenizer, target: Tokenizer) -> tuple[Segmenter, Segmenter]:
    """The segmenters of both sides; the same object if they share a vocabulary."""
    first = make_segmenter(source)
    if source is target:
        return first, first
    return first, make_segmenter(target, "tokenizer.target_model_file")


def make_sampler(
    corpus: TokenizedCorpus, tokenizers: tuple[Tokenizer, Tokenizer], config: Config
) -> SubwordSampler | None:
    """The sampler of a run's training pairs.

    Args:
      corpus: the training pairs.
      tokenizers: of the source and the target.
      config: of the run.

    Returns:
      The sampler; None if tokenizer.sampling_rate is 0.

    Raises:
      InputError: a tokenizer's model has only one segmentation of a text.
    """
    rate = config.tokenizer.sampling_rate
    return SubwordSampler(corpus, tokenizers, rate, config.data, config.seed) if rate else None


def growth_of(stored: np.ndarray, sampled: np.ndarray) -> Growth:
    """The growth from `stored` to `sampled` lengths, [N] each, EOS included."""
    pieces = np.maximum(stored - 1, 1)
    more = sampled - stored
    mean = max(float(more.sum() / pieces.sum()), 0.0)
    return Growth(mean, float(np.sqrt(((more - mean * pieces) ** 2).sum() / pieces.sum())))


def sentence_seeds(seed: int, step: int, side: int, pairs: np.ndarray) -> np.ndarray:
    """The seed of each pair's segmentation at step n.

    Args:
      seed: of the run.
      step: n.
      side: 0: source, 1: target.
      pairs: [N] indices into the corpus.

    Returns:
      [N] int64 from 0 to 2^63 - 1.
    """
    mixed = pairs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += random_words(seed, (STREAM, step, side), 1)
    # The finalizer of SplitMix64 (Steele et al. 2014): neighbouring pairs get unrelated seeds.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def sample_sentences(segmenter: Segmenter, rate: float, task: SamplingTask) -> SampledSentences:
    """Segment each sentence of a task at random; a row's sentences never exceed its width.

    The room of a sentence is what the sentences before it in its row left over, minus what is
    planned for those after it. It is never less than planned, so the stored one always fits.

    Args:
      segmenter: of the task's side.
      rate: tokenizer.sampling_rate.
      task: the sentences, their rooms and their seeds.

    Returns:
      The sampled sentences, in the order of the task.
    """
    ends = np.cumsum(task.lengths)
    planned = np.cumsum(task.planned)
    last_of_row = np.searchsorted(task.rows, task.rows, side="right") - 1
    behind = (planned[last_of_row] - planned).tolist()
    ids, rows, seeds = task.ids.tolist(), task.rows.tolist(), task.seeds.tolist()
    sampled_ids: list[int] = []
    lengths, draws = [], []
    row, start, free = -1, 0, 0
    for index, end in enumerate(ends.tolist()):
        if rows[index] != row:
            row, free = rows[index], task.width
        room = free - behind[index] - 1
        pieces, drawn = sample_sentence(segmenter, rate, ids[start : end - 1], room, seeds[index])
        sampled_ids += pieces
        sampled_ids.append(ids[end - 1])
        lengths.append(len(pieces) + 1)
        draws.append(drawn)
        free -= len(pieces) + 1
        start = end
    return SampledSentences(
        np.array(sampled_ids, np.int64), np.array(lengths, np.int64), np.array(draws, np.int64)
    )


def sample_sentence(
    segmenter: Segmenter, rate: float, stored: list[int], room: int, seed: int
) -> tuple[list[int], int]:
    """Draw a segmentation that fits its room.

    Args:
      segmenter: of the sentence's side.
      rate: of the first draw; 0: the stored segmentation is returned.
      stored: ids without EOS.
      room: most pieces, without EOS.
      seed: of the sentence's draws.

    Returns:
      The first draw that fits and its number from 0; `(stored, DRAWS)` if none does.
    """
    if rate == 0.0:
        return stored, 0
    words = cut_words(stored, segmenter.starts_word)
    generator = random.Random(seed)
    for draw in range(DRAWS):
        pieces: list[int] = []
        for word in words:
            pieces += segmenter.draw(word, rate, generator)
        if len(pieces) <= room:
            return pieces, draw
        rate = segmenter.milder(rate)
    return stored, DRAWS


def cut_words(ids: list[int], starts_word: list[bool]) -> list[tuple[int, ...]]:
    """The ids of each word."""
    bounds = [at for at, index in enumerate(ids) if at and starts_word[index]]
    bounds = [0, *bounds, len(ids)]
    return [tuple(ids[low:high]) for low, high in zip(bounds, bounds[1:], strict=False)]


def sampled_starts(rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[N] first column of each sentence, right after its predecessor in the row."""
    return starts_in_row(lengths, np.searchsorted(rows, rows))
