"""Which intervals are spikes, and which checkpoints are old enough to go back to."""

import dataclasses
import json

import pytest

from jaxformer.config import TrainingConfig
from jaxformer.errors import InputError
from jaxformer.training.guards.spikes import NEEDED, WINDOW, Spike, SpikeDetector

SETTINGS = TrainingConfig(log_every=10, save_every=20, eval_every=50, spike_factor=1.5)


def feed(detector, losses, first=1, settings=SETTINGS):
    """Intervals of ten steps of 4 tokens, from interval number `first` on; what was found."""
    found = []
    for number, loss in enumerate(losses, first):
        for _ in range(10):
            detector.add(4 * loss, 4.0)
        found.append(detector.end_interval(10 * number, settings))
    return found


def test_a_spike_is_above_the_factor_times_the_median_of_the_intervals_before():
    detector = SpikeDetector()
    assert feed(detector, [8.0, 2.0, 4.0, 2.0, 4.4, 4.5]) == [None] * 6  # median 3, 1.5 times 3
    detector = SpikeDetector()
    assert feed(detector, [8.0, 2.0, 4.0, 2.0, 4.625])[4] == Spike(50, 4.625, 3.0, 41, 0)
    assert detector.losses == [8.0, 2.0, 4.0, 2.0]


def test_only_the_last_intervals_are_the_usual_ones():
    detector = SpikeDetector()
    feed(detector, [9.0] * WINDOW + [2.0] * (WINDOW // 2 + 1))
    (spike,) = feed(detector, [3.1], first=WINDOW * 2)
    assert spike.usual == 2.0 and len(detector.losses) == WINDOW


def test_a_sum_is_divided_by_its_tokens_and_an_interval_without_any_is_passed_over():
    detector = SpikeDetector()
    detector.add(30.0, 10.0)
    detector.add(0.0, 5.0)
    detector.end_interval(10, SETTINGS)
    assert detector.losses == [2.0]
    assert detector.end_interval(20, SETTINGS) is None and detector.losses == [2.0]


def test_nothing_is_judged_too_early():
    settings = dataclasses.replace(SETTINGS, save_every=1000)
    detector = SpikeDetector()
    assert feed(detector, [1.0] * (NEEDED - 1) + [9.0]) == [None] * NEEDED
    # The first checkpoint is that of the evaluation at 50: the interval from 40 on has none before.
    detector = SpikeDetector()
    assert feed(detector, [1.0] * 4 + [9.0], settings=settings)[4] is None
    assert feed(detector, [9.0], first=6, settings=settings)[0].before == 51


def test_without_a_factor_there_are_no_spikes():
    settings = dataclasses.replace(SETTINGS, spike_factor=0.0)
    assert feed(SpikeDetector(), [1.0] * 9 + [1e9], settings=settings) == [None] * 10


def test_spikes_in_a_row_ask_for_older_checkpoints_until_an_interval_is_good():
    detector = SpikeDetector()
    (first,) = feed(detector, [1.0] * 9 + [3.0])[9:]
    detector.restored.append(80)
    (second,) = feed(detector, [3.0], first=11)
    detector.restored.append(60)
    assert (first.before, second.before, second.rollbacks) == (91, 80, 1)
    assert feed(detector, [1.0], first=12) == [None]
    (third,) = feed(detector, [3.0], first=13)
    assert (third.before, third.rollbacks) == (121, 0)


def test_a_copy_from_within_an_interval_judges_alike():
    whole, losses = SpikeDetector(), [1.1, 0.9, 1.3, 1.2, 0.7, 1.7, 0.1]
    whole_found = feed(whole, losses)
    half = SpikeDetector()
    feed(half, losses[:5])
    for _ in range(3):
        half.add(4 * losses[5], 4.0)
    copy = SpikeDetector(**json.loads(json.dumps(dataclasses.asdict(half))))
    for _ in range(7):
        copy.add(4 * losses[5], 4.0)
    assert copy.end_interval(60, SETTINGS) == whole_found[5]
    assert whole_found[5] == Spike(60, pytest.approx(1.7), pytest.approx(1.1), 51, 0)
    feed(copy, losses[6:], first=7)
    assert copy == whole


@pytest.mark.parametrize("factor", [1.0, 0.5, -1.0])
def test_a_factor_that_calls_the_usual_a_spike_is_refused(factor):
    with pytest.raises(InputError, match="training.spike_factor"):
        TrainingConfig(spike_factor=factor)
