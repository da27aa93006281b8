"""Shapes of the batches that are searched: few, so that few programs are compiled."""

from __future__ import annotations

from typing import NamedTuple

from jaxformer.config import DecodingConfig

ROW_BUCKETS = (1, 8, 32)  # sentences of a small batch; fuller ones take all rows the budget allows


class SearchShape(NamedTuple):
    """Static sizes of a compiled search.

    Attributes:
      rows: B, sentences of the batch, empty rows among them.
      source_length: S, tokens with padding.
      max_length: T, room for tokens in a hypothesis, EOS included.
      width: W, hypotheses kept alive for each sentence.
    """

    rows: int
    source_length: int
    max_length: int
    width: int


def most_sentences(config: DecodingConfig, length: int) -> int:
    """Sentences padded to `length` source tokens that one batch takes."""
    return max(1, config.tokens_per_batch // length)


def batch_rows(sentences: int, most: int, parts: int) -> int:
    """Rows that are compiled for a batch of some sentences.

    Args:
      sentences: of the batch, at most `most`.
      most: from `most_sentences`.
      parts: that the mesh cuts rows into; the rows are a multiple of it.
    """
    rows = next((r for r in ROW_BUCKETS if sentences <= r <= most), most)
    return -(-rows // parts) * parts


def length_limit(config: DecodingConfig, source_length: int, position_limit: int | None) -> int:
    """Tokens of the longest translation of a sentence, EOS included.

    Args:
      config: has the factor and the constant.
      source_length: tokens with EOS.
      position_limit: of the model's configuration; None: there is none.
    """
    limit = int(config.max_length_factor * source_length) + config.max_length_extra
    return min(limit, position_limit or limit)
