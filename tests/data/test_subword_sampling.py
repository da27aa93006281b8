"""Sampled batches: exact text, within the plan's room, and decided by the step alone."""

import itertools
import re
from typing import NamedTuple

import numpy as np
import pytest

from jaxformer.config import Config, DataConfig, TokenizerConfig
from jaxformer.data import subword_sampling
from jaxformer.data.batching import BatchLayout
from jaxformer.data.corpus import CorpusReport, TokenizedCorpus, encode_lines
from jaxformer.data.pair_dataset import make_batch, make_plan, plan_summary, stored_sentences
from jaxformer.data.segmenters import make_segmenter
from jaxformer.data.subword_sampling import (
    DRAWS,
    SamplingTask,
    Sentences,
    SubwordSampler,
    make_sampler,
    sample_sentence,
    sample_sentences,
    sentence_seeds,
)
from jaxformer.data.tokenizer_training import train_tokenizer
from jaxformer.files.inputs import read_lines

PAD = 0
STEMS = ["house", "garden", "window", "morning", "teacher", "yellow", "running", "mountain"]
ENDS = ["", "s", "ing", "er", "less", "ful"]
HARD = ["\u2581 a \u2581\u2581mark\u2581", "  two  spaces ", "½ ﬁ Ａｂｃ 你好 😀", "tab\tcr\rend"]


def random_lines(count, seed):
    """HARD first, then sentences of made words."""
    random = np.random.RandomState(seed)
    words = [stem + end for stem in STEMS for end in ENDS]
    lines = [" ".join(random.choice(words, random.randint(1, 14))) for _ in range(count)]
    return [*HARD, *lines][:count]


LINES = random_lines(400, 0), [line.upper() for line in random_lines(400, 1)]


def make_corpus(tokenizers, lines=LINES):
    sides = {}
    for name, tokenizer, side in zip(("source", "target"), tokenizers, lines, strict=True):
        ids, lengths = encode_lines(tokenizer, side)
        sides[f"{name}_ids"] = ids.astype(np.uint16)
        sides[f"{name}_offsets"] = np.concatenate([[0], np.cumsum(lengths)])
    count = len(lines[0])
    report = CorpusReport(read=count, kept=count)
    return TokenizedCorpus(**sides, original_index=np.arange(count), report=report)


def train(model_type):
    config = TokenizerConfig(model_type=model_type, vocab_size=380)
    return train_tokenizer(itertools.chain(*LINES), config, progress=False)


TOKENIZERS = {"bpe": train("bpe"), "unigram": train("unigram")}
RATES = {"bpe": 0.2, "unigram": 0.02}


def setting(batching, model_type="bpe", *, rate=None, seed=3, max_length=128):
    tokenizers = (TOKENIZERS[model_type],) * 2
    corpus = make_corpus(tokenizers)
    config = DataConfig(
        batching=batching, tokens_per_batch=1024, max_length=max_length, num_buckets=3
    )
    rate = RATES[model_type] if rate is None else rate
    sampler = SubwordSampler(corpus, tokenizers, rate, config, seed)
    plan = make_plan(corpus, config, seed=seed, row_multiple=4, shuffle=True, sampler=sampler)
    return corpus, config, sampler, plan


def texts_of_batch(batch, name, tokenizer):
    """The text of each sentence of one side, row by row."""
    texts = []
    for index, row in enumerate(batch[name]):
        segments = batch.get(f"{name}_segments")
        segments = (row != PAD).astype(int) if segments is None else segments[index]
        for segment in range(1, segments.max(initial=0) + 1):
            ids = row[segments == segment].tolist()
            assert ids[-1] == tokenizer.eos_id and tokenizer.eos_id not in ids[:-1]
            texts += tokenizer.decode([ids])
    return texts


@pytest.mark.parametrize("batching", ["buckets", "packed"])
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_every_sampled_row_spells_its_text_in_the_planned_shape(batching, model_type):
    corpus, _, sampler, plan = setting(batching, model_type)
    shapes = {(shape.rows, shape.source_length, shape.target_length) for shape in plan.shapes()}
    seen, longer = [], 0
    for step in range(plan.steps_per_epoch):
        batch = make_batch(corpus, plan, step, slice(None), PAD, sampler)
        assert (*batch["inputs"].shape, batch["targets"].shape[1]) in shapes
        assert batch["targets"].shape[0] == batch["inputs"].shape[0]
        pairs = plan.layout(step, slice(None)).pairs
        seen += pairs.tolist()
        for side, name in enumerate(("inputs", "targets")):
            assert batch[name].dtype == np.int32
            texts = texts_of_batch(batch, name, TOKENIZERS[model_type])
            assert texts == [LINES[side][pair] for pair in pairs]
            longer += int((batch[name] != PAD).sum())
    assert sorted(seen) == list(range(400))
    assert longer > 1.02 * (len(corpus.source_ids) + len(corpus.target_ids))


def test_positions_and_segments_follow_the_sampled_lengths():
    corpus, _, sampler, plan = setting("packed")
    batch = make_batch(corpus, plan, 1, slice(None), PAD, sampler)
    for name in ("inputs", "targets"):
        for row, segments, positions in zip(
            batch[name], batch[f"{name}_segments"], batch[f"{name}_positions"], strict=True
        ):
            tokens = int((segments > 0).sum())
            assert (row[:tokens] != PAD).all() and (row[tokens:] == PAD).all()
            assert (segments[tokens:] == 0).all() and (positions[tokens:] == 0).all()
            sizes = np.bincount(segments[:tokens], minlength=1)[1:]
            expected = np.concatenate([np.arange(size) for size in sizes] or [[]])
            np.testing.assert_array_equal(positions[:tokens], expected)


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_a_batch_is_the_same_again_and_in_parts(batching):
    corpus, _, sampler, plan = setting(batching)
    again_corpus, _, again_sampler, again_plan = setting(batching)
    for step in (0, plan.steps_per_epoch + 1):
        whole = make_batch(corpus, plan, step, slice(None), PAD, sampler)
        again = make_batch(again_corpus, again_plan, step, slice(None), PAD, again_sampler)
        rows = len(whole["inputs"])
        parts = [
            make_batch(corpus, plan, step, slice(p * rows // 4, (p + 1) * rows // 4), PAD, sampler)
            for p in range(4)
        ]
        for name in whole:
            np.testing.assert_array_equal(whole[name], again[name])
            np.testing.assert_array_equal(
                whole[name], np.concatenate([part[name] for part in parts])
            )


def test_each_epoch_segments_a_sentence_anew():
    corpus, _, sampler, plan = setting("packed")
    epochs = []
    for epoch in range(2):
        found = {}
        for step in range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch):
            batch = make_batch(corpus, plan, step, slice(None), PAD, sampler)
            layout = plan.layout(step, slice(None))
            for pair, row, segment in zip(layout.pairs, layout.rows, layout.segments, strict=True):
                inside = batch["inputs_segments"][row] == segment
                found[int(pair)] = batch["inputs"][row][inside].tolist()
        epochs.append(found)
    long = [pair for pair in range(400) if len(corpus.pair(pair)[0]) > 12]
    assert len(long) > 100
    assert np.mean([epochs[0][pair] != epochs[1][pair] for pair in long]) > 0.9
    other = setting("packed", seed=4)[2]
    assert not np.array_equal(
        sentence_seeds(3, 0, 0, np.arange(9)), sentence_seeds(4, 0, 0, np.arange(9))
    )
    assert other.growth != sampler.growth


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_rate_0_is_the_stored_segmentation(batching):
    corpus, config, sampler, plan = setting(batching, rate=0.0)
    plain = make_plan(corpus, config, seed=3, row_multiple=4, shuffle=True)
    assert [growth.mean for growth in sampler.growth] == [0.0, 0.0]
    assert plan.shapes() == plain.shapes()
    for step in range(plan.steps_per_epoch):
        expected = make_batch(corpus, plain, step, slice(None), PAD)
        sampled = make_batch(corpus, plan, step, slice(None), PAD, sampler)
        for name in expected:
            np.testing.assert_array_equal(sampled[name], expected[name])
    run = Config(data=config, tokenizer=TokenizerConfig(sampling_rate=0.0))
    assert make_sampler(corpus, sampler.tokenizers, run) is None
    run = Config(data=config, tokenizer=TokenizerConfig(sampling_rate=0.2))
    assert make_sampler(corpus, sampler.tokenizers, run).rate == 0.2


def test_without_room_the_stored_segmentation_is_taken():
    corpus = make_corpus((TOKENIZERS["bpe"],) * 2)
    pairs = np.arange(100)
    lines = [corpus.pair(pair)[0] for pair in pairs]
    lengths = np.array([len(line) for line in lines])
    ids = np.concatenate(lines).astype(np.int64)
    rows = pairs // 4
    width = int(np.bincount(rows, lengths).max())
    task = SamplingTask(
        0, width, ids, lengths, lengths, rows, sentence_seeds(0, 0, 0, pairs)
    )  # fmt: skip
    sampled = sample_sentences(make_segmenter(TOKENIZERS["bpe"]), 0.9, task)
    assert np.bincount(rows, sampled.lengths).max() <= width
    ends = np.cumsum(sampled.lengths)
    stored = [
        sampled.ids[end - size : end].tolist() == line.tolist()
        for end, size, line in zip(ends, sampled.lengths, lines, strict=True)
    ]
    fell_back = sampled.draws == DRAWS
    assert 0.2 < fell_back.mean() < 1.0
    assert all(np.array(stored)[fell_back])


def test_pairs_of_a_row_pass_on_the_room_that_they_leave():
    class Longer:
        """Adds as many pieces as the first id says."""

        starts_word = [False] * 10

        def draw(self, word, rate, generator):
            return (*word, *[9] * word[0])

        def milder(self, rate):
            return rate

    def lengths(firsts, width, planned):
        count = len(firsts)
        ids = np.array([[first, 7, 1] for first in firsts]).ravel()
        zeros = np.zeros(count, np.int64)
        task = SamplingTask(0, width, ids, zeros + 3, zeros + planned, zeros, zeros)
        return sample_sentences(Longer(), 0.1, task).lengths.tolist()

    assert lengths([1, 1, 1], 12, 4) == [4, 4, 4]
    assert lengths([2, 1, 1], 12, 4) == [3, 4, 4]  # 5 is more than planned: the stored 3
    assert lengths([0, 2, 1], 12, 4) == [3, 5, 4]  # what the first leaves, the second uses
    assert lengths([2, 1, 1], 13, 4) == [5, 4, 4]  # so is what the plan left at the end of the row
    assert lengths([2, 0, 2, 2], 17, 4) == [5, 3, 5, 3]


def test_draws_that_do_not_fit_are_repeated_milder():
    tried = []

    class Recorder:
        starts_word = [True] * 5 + [False] * 5

        def draw(self, word, rate, generator):
            tried.append((word, rate))
            return word + (9,) * (9 - len(tried))

        def milder(self, rate):
            return rate / 2

    assert sample_sentence(Recorder(), 0.2, [6, 4, 7], 5, 0) == ([6, 4, 7], DRAWS)
    rates = [0.2, 0.2, 0.1, 0.1, 0.05, 0.05]
    assert tried == list(zip([(6,), (4, 7)] * 3, rates, strict=True))
    tried.clear()
    pieces, draw = sample_sentence(Recorder(), 0.2, [6, 4, 7], 14, 5)
    assert (len(pieces), draw) == (3 + 6 + 5, 1)
    assert sample_sentence(Recorder(), 0.0, [6, 4, 7], 0, 5) == ([6, 4, 7], 0)


def test_seeds_differ_by_step_side_and_pair():
    pairs = np.arange(5000)
    seeds = [sentence_seeds(1, step, side, pairs) for step in (0, 1) for side in (0, 1)]
    every = np.concatenate(seeds)
    assert every.min() >= 0 and every.max() <= 2**63 - 1
    assert len(np.unique(every)) == 20_000
    np.testing.assert_array_equal(sentence_seeds(1, 1, 1, pairs[7:9]), seeds[3][7:9])
    assert sentence_seeds(1, 0, 0, np.arange(3)).tolist() == seeds[0][:3].tolist()


def test_planned_lengths_leave_room_but_not_beyond_max_length():
    _, _, sampler, _ = setting("buckets", max_length=40)
    sampler.growth = (subword_sampling.Growth(0.5, 1.0),) * 2
    lengths = np.array([1, 2, 5, 17, 30, 50], np.int32)
    # n pieces and EOS: n + ceil(0.5 n + 0.25 sqrt(n)) + 1, at most 40, at least what is stored
    assert sampler.planned_lengths(0, lengths).tolist() == [1, 3, 8, 26, 40, 50]
    assert sampler.planned_lengths(0, lengths).dtype == np.int32
    assert sampler.planned_lengths(1, lengths[:0]).shape == (0,)


class SamplingShares(NamedTuple):
    """What became of the sentences of an epoch, and how full its batches are."""

    redrawn: float  # share of sentences whose first draw did not fit
    stored: float  # share of sentences that kept their stored segmentation, as no draw fitted
    filled: float  # share of the cells of both sides that hold a token


def sampling_shares(corpus, plan, sampler):
    """How often the room of `plan` was too small in an epoch."""
    sentences = redrawn = stored = tokens = cells = 0
    for step in range(plan.steps_per_epoch):
        layout = plan.layout(step, slice(None))
        sides = stored_sentences(corpus, layout.pairs)
        for side in sampler.run(sampler.tasks(layout, sides, step)):
            sentences += len(side.draws)
            redrawn += int((side.draws > 0).sum())
            stored += int((side.draws == DRAWS).sum())
            tokens += len(side.ids)
        rows, source_length, target_length = layout.shape
        cells += rows * (source_length + target_length)
    return SamplingShares(redrawn / sentences, stored / sentences, tokens / cells)


def test_the_plan_reckons_with_what_multi30k_needs(real_data):
    folder = real_data / "multi30k"
    lines = [
        list(itertools.islice(read_lines(folder / f"train.{language}"), 4000))
        for language in ("en", "de")
    ]
    config = TokenizerConfig(vocab_size=4000)
    tokenizer = train_tokenizer(itertools.chain(*lines), config, progress=False)
    corpus = make_corpus((tokenizer, tokenizer), lines)
    filled = {}
    for batching in ("buckets", "packed"):
        data = DataConfig(batching=batching)
        sampler = SubwordSampler(corpus, (tokenizer, tokenizer), 0.1, data, 0)
        plan = make_plan(corpus, data, seed=0, row_multiple=8, shuffle=True, sampler=sampler)
        shares = sampling_shares(corpus, plan, sampler)
        print(batching, sampler.growth, shares)
        assert all(0.12 < growth.mean < 0.3 for growth in sampler.growth)
        assert shares.redrawn < 0.1 and shares.stored < 0.002
        filled[batching] = shares.filled
        shown = re.search(r"tokens fill ([\d.]+)% of", plan_summary(plan, sampler))
        assert abs(float(shown[1]) / 100 - shares.filled) < 0.02
    assert filled["buckets"] > 0.65 and filled["packed"] > 0.85


def test_a_batch_without_pairs():
    _, _, sampler, _ = setting("packed")
    none = np.zeros(0, np.int64)
    layout = BatchLayout(none, none, none, none, none, (4, 128, 128))
    empty = Sentences(none, none)
    for side in sampler.run(sampler.tasks(layout, (empty, empty), 5)):
        assert [len(part) for part in side] == [0, 0, 0]
