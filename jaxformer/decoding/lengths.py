"""Lengths that programs are compiled for, and the longest that a model can take."""

from __future__ import annotations

from jaxformer.model_config import TransformerConfig

LENGTH_BUCKETS = (16, 32, 64, 128, 256, 512, 1024)  # tokens; longer ones double on


def longest_sentence(config: TransformerConfig) -> int | None:
    """Tokens that a model has positions for; None: any number."""
    return config.max_length if config.positions == "learned" else None


def length_bucket(length: int, longest: int | None = None) -> int:
    """The shortest length that is compiled and holds `length` tokens.

    Args:
      length: of a sentence, at most `longest`.
      longest: no bucket is longer, even to be padded: a row that the table of learned positions
        lacks is NaN, and attention to it, masked or not, makes NaN of the others.
    """
    bucket = next((bucket for bucket in LENGTH_BUCKETS if length <= bucket), LENGTH_BUCKETS[-1])
    while bucket < length:
        bucket *= 2
    return min(bucket, longest or bucket)
