"""Tokenised corpora of random ids, for tests of plans and batches."""

import numpy as np

from jaxformer.data.corpus import CorpusReport, TokenizedCorpus


def random_corpus(count, seed=0, longest=40):
    """Pairs of random ids from 2 to 999, EOS (1) after each."""
    random = np.random.RandomState(seed)
    sides = {}
    for side in ("source", "target"):
        lengths = np.clip(random.gamma(4.0, 3.0, count).astype(np.int64) + 2, 2, longest)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = random.randint(2, 1000, offsets[-1]).astype(np.uint16)
        ids[offsets[1:] - 1] = 1
        sides[f"{side}_ids"], sides[f"{side}_offsets"] = ids, offsets
    report = CorpusReport(read=count, kept=count)
    return TokenizedCorpus(**sides, original_index=np.arange(count), report=report)


def rows_of(plan, step):
    """The first pair of each row of a step, [B] with -1 for an empty row, and the lengths S, T."""
    layout = plan.layout(step, slice(None))
    assert layout.shape == plan.shape(step)
    pairs = np.full(layout.shape[0], -1)
    pairs[layout.rows[::-1]] = layout.pairs[::-1]
    return pairs, *layout.shape[1:]
