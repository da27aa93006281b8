"""Lengths that are compiled."""

import pytest

from jaxformer.decoding.lengths import length_bucket


def test_length_buckets_hold_the_length_and_are_few():
    assert [length_bucket(n) for n in (1, 16, 17, 1024, 1025, 5000)] == [
        16, 16, 32, 1024, 2048, 8192,
    ]  # fmt: skip


@pytest.mark.parametrize(("length", "bucket"), [(1, 16), (17, 32), (65, 100), (100, 100)])
def test_no_bucket_is_longer_than_the_model_can_take(length, bucket):
    assert length_bucket(length, 100) == bucket
