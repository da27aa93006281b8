"""Subword regularisation: training sentences are cut into pieces anew each time they are read.

The segmentation of a sentence at step n is a pure function of (corpus, config, seed, n, pair), and
never longer than the room that the plan gave to it. The plan itself is made once, from the stored
lengths and how much longer sampled ones are.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from jaxformer.config import Config, DataConfig
from jaxformer.data.batching import BatchLayout, random_words
from jaxformer.data.corpus import TokenizedCorpus
from jaxformer.data.packing import starts_in_row
from jaxformer.data.segmenters import Segmenter, make_segmenter
from jaxformer.data.tokenizers import Tokenizer

DRAWS = 3  # segmentations tried for a sentence, each milder, before the stored one is taken
SAMPLED_PAIRS = 1000  # segmented once, to know how much longer sentences get
UNLIMITED = 2**40  # tokens
STREAM = 16  # of the random words; plans use lower numbers
# Standard deviations of room above the mean. Pairs of a packed row share the row's room, so that
# their deviations cancel; a row of a bucket has one pair.
BUCKET_MARGIN, PACKED_MARGIN = 0.25, 0.0


class Sentences(NamedTuple):
    """One side of some pairs as a flat array; every sentence ends in EOS."""

    ids: np.ndarray  # [tokens]
    lengths: np.ndarray  # [N] int64, EOS counted


class SamplingTask(NamedTuple):
    """The sentences of one side of a batch, and the room that they have."""

    side: int  # 0: source, 1: target
    width: int  # tokens of a row
    ids: np.ndarray  # [tokens] int64, the stored segmentations
    lengths: np.ndarray  # [N] int64, EOS counted
    planned: np.ndarray  # [N] int64 tokens that the plan reckons with, at least `lengths`
    rows: np.ndarray  # [N] int64, ascending
    seeds: np.ndarray  # [N] int64, from 0 to 2^63 - 1


class SampledSentences(NamedTuple):
    """What became of a `SamplingTask`."""

    ids: np.ndarray  # [tokens] int64
    lengths: np.ndarray  # [N] int64, EOS counted
    draws: np.ndarray  # [N] int64: 0 the first draw fitted, ..., DRAWS: the stored one was taken


class Growth(NamedTuple):
    """How much longer sampled sentences are than stored ones of n pieces."""

    mean: float  # pieces more, times n
    spread: float  # standard deviation of it, times sqrt(n)


class SubwordSampler:
    """Random segmentations of the pairs of a corpus, and the lengths to plan them with.

    A draw that is too long for its room is drawn again, more mildly, and at last the stored one is
    taken; so sampled sentences are a little shorter than the rate alone would make them.

    Args:
      corpus: the tokenised pairs.
      tokenizers: the source's and the target's.
      rate: tokenizer.sampling_rate, see `BpeDropout` and `UnigramSampling`; 0: nothing changes.
      config: its batching and max_length.
      seed: of the run.

    Attributes:
      tokenizers, rate: as given.
      growth: (source, target), measured on SAMPLED_PAIRS of the corpus.
      fill: (source, target), share of the planned tokens that sampled sentences take on average.

    Raises:
      InputError: a tokenizer's model has one segmentation of a text only.
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
        """Tokens to reserve for sentences of `lengths` stored tokens, EOS counted; [N] int32.

        At least `lengths`, and at most data.max_length where that is more.
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
        """What is to be sampled for the batch of step n, the source's sentences and the target's.

        Args:
          layout: of the batch.
          sides: the stored segmentations of `layout.pairs`.
          step: n.
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
        """Sample each task, here and now."""
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
    """Of both sides; the same object if they share their vocabulary."""
    first = make_segmenter(source)
    if source is target:
        return first, first
    return first, make_segmenter(target, "tokenizer.target_model_file")


def make_sampler(
    corpus: TokenizedCorpus, tokenizers: tuple[Tokenizer, Tokenizer], config: Config
) -> SubwordSampler | None:
    """The sampler of a run's training pairs; None where tokenizer.sampling_rate is 0."""
    rate = config.tokenizer.sampling_rate
    return SubwordSampler(corpus, tokenizers, rate, config.data, config.seed) if rate else None


def growth_of(stored: np.ndarray, sampled: np.ndarray) -> Growth:
    """The growth of sentences of these lengths, [N] each, EOS counted."""
    pieces = np.maximum(stored - 1, 1)
    more = sampled - stored
    mean = max(float(more.sum() / pieces.sum()), 0.0)
    return Growth(mean, float(np.sqrt(((more - mean * pieces) ** 2).sum() / pieces.sum())))


def sentence_seeds(seed: int, step: int, side: int, pairs: np.ndarray) -> np.ndarray:
    """[N] int64 from 0 to 2^63 - 1: the seed of each pair's segmentation at step n."""
    mixed = pairs.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += random_words(seed, (STREAM, step, side), 1)
    # The finalizer of SplitMix64 (Steele et al. 2014): neighbouring pairs get unrelated seeds.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def sample_sentences(segmenter: Segmenter, rate: float, task: SamplingTask) -> SampledSentences:
    """Segment each sentence of a task at random; a row's sentences never exceed its width.

    The room of a sentence is what its row has left after the sentences before it, less what is
    planned for those behind it. It is never less than planned, so that the stored one always fits.
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
    """The first draw of at most `room` pieces and its number from 0; else `stored` and DRAWS."""
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
    """[N] first column of each sentence, behind the one before it in its row."""
    return starts_in_row(lengths, np.searchsorted(rows, rows))
