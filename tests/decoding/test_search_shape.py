"""Rows and limits of the batches that a translator compiles."""

import pytest

from jaxformer.config import DecodingConfig
from jaxformer.decoding.search_shape import batch_rows, length_limit, most_sentences


def test_a_batch_takes_what_the_budget_holds():
    assert most_sentences(DecodingConfig(tokens_per_batch=4096), 64) == 64
    assert most_sentences(DecodingConfig(tokens_per_batch=10), 64) == 1


@pytest.mark.parametrize(
    ("sentences", "most", "parts", "rows"),
    [(1, 64, 1, 1), (2, 64, 1, 8), (9, 64, 1, 32), (33, 64, 1, 64), (5, 6, 1, 6), (1, 64, 8, 8),
     (33, 50, 8, 56)],
)  # fmt: skip
def test_rows_come_in_few_numbers_and_fill_every_part(sentences, most, parts, rows):
    assert batch_rows(sentences, most, parts) == rows


def test_the_limit_of_a_translation():
    config = DecodingConfig(max_length_factor=1.5, max_length_extra=10)
    assert length_limit(config, 21, None) == 41
    assert length_limit(config, 21, 30) == 30
