"""Lengths that programs are compiled for."""

from __future__ import annotations

LENGTH_BUCKETS = (16, 32, 64, 128, 256, 512, 1024)  # tokens; longer ones double on


def length_bucket(length: int, longest: int | None = None) -> int:
    """The shortest length that is compiled and holds `length` tokens.

    Args:
      length: of a sentence, at most `longest`.
      longest: the `position_limit` of the model. No bucket is longer, even to be padded: a row that
        the table of learned positions lacks is NaN, and attention to it, masked or not, makes NaN
        of the others.
    """
    bucket = next((bucket for bucket in LENGTH_BUCKETS if length <= bucket), LENGTH_BUCKETS[-1])
    while bucket < length:
        bucket *= 2
    return min(bucket, longest or bucket)
