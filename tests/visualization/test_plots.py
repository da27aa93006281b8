"""The pictures hold the numbers of the functions that they are about."""

import math

import numpy as np
import pytest

from jaxformer.config import OptimizerConfig
from jaxformer.errors import InputError
from jaxformer.ops.positions import sinusoidal_positions
from jaxformer.training.optimizer import make_schedule
from jaxformer.visualization.plots import (
    label_smoothing_figure,
    loss_by_confidence,
    next_piece_figure,
    positions_figure,
    schedule_figure,
)


def lines_of(axis):
    """Data of each line by its name in the legend; marks without a name are left out."""
    return {
        line.get_label(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for line in axis.lines
        if not line.get_label().startswith("_")
    }


def test_the_heat_map_is_the_table_of_positions():
    above = positions_figure(50, 32).axes[0]
    np.testing.assert_array_equal(above.images[0].get_array(), sinusoidal_positions(50, 32).T)
    assert above.images[0].get_clim() == (-1.0, 1.0)
    assert "column" in above.get_ylabel()


def test_the_waves_are_pairs_of_columns_of_one_angle():
    below = positions_figure(100, 128).axes[1]
    lines = lines_of(below)
    assert list(lines) == ["column 24, sin", "column 25, cos", "column 38, sin", "column 39, cos"]
    for name, (positions, values) in lines.items():
        column = int(name.split(",")[0].removeprefix("column "))
        np.testing.assert_array_equal(values, sinusoidal_positions(100, 128)[:, column])
        np.testing.assert_array_equal(positions, np.arange(100))
    sine, cosine = lines["column 24, sin"][1], lines["column 25, cos"][1]
    np.testing.assert_allclose(sine**2 + cosine**2, 1.0, rtol=1e-5)


def test_the_narrowest_model_has_its_one_pair():
    assert list(lines_of(positions_figure(2, 2).axes[1])) == ["column 0, sin", "column 1, cos"]


@pytest.mark.parametrize(
    ("length", "d_model", "message"),
    [(10, 7, "d_model=7 is odd"), (1, 8, "length=1"), (10, 0, "d_model=0"), (9999, 8, "length")],
)
def test_impossible_positions_are_refused(length, d_model, message):
    with pytest.raises(InputError, match=message):
        positions_figure(length, d_model)


def test_schedules_are_drawn_as_they_are_trained_with():
    config = OptimizerConfig(warmup_steps=40)
    schedule = make_schedule(config, d_model=64, num_steps=400)
    axis = schedule_figure({"narrow": schedule}, 400).axes[0]
    updates, rates = lines_of(axis)["narrow"]
    np.testing.assert_array_equal(updates, np.arange(1, 401))
    np.testing.assert_allclose(rates, schedule(np.arange(400)), rtol=1e-6)
    (mark,) = [line for line in axis.lines if line.get_label().startswith("_")]
    assert list(mark.get_xdata()) == [40]
    assert mark.get_ydata()[0] == pytest.approx(64**-0.5 * 40**-0.5)
    assert axis.get_xlabel() == "update" and axis.get_ylabel() == "learning rate"


def test_the_peak_of_a_long_run_is_not_lost_between_points():
    schedule = make_schedule(OptimizerConfig(warmup_steps=7), d_model=512, num_steps=100_000)
    updates, rates = lines_of(schedule_figure({"one": schedule}, 100_000).axes[0])["one"]
    assert len(updates) < 2100 and 7 in updates
    assert rates.max() == pytest.approx(512**-0.5 * 7**-0.5)


def test_too_many_schedules_are_refused():
    with pytest.raises(InputError, match="number of schedules=8 .* 1 and 7"):
        schedule_figure({str(n): lambda count: count for n in range(8)}, 10)
    with pytest.raises(InputError, match="number of schedules=0"):
        schedule_figure({}, 10)


def test_bars_are_the_targets_that_the_loss_asks_for():
    left = label_smoothing_figure((0.1,), vocab_size=8).axes[0]
    one_hot, smoothed = ([bar.get_height() for bar in group] for group in left.containers)
    assert one_hot == [0, 0, 0, 0, 1, 0, 0, 0]
    np.testing.assert_allclose(smoothed, [0.0125] * 4 + [0.9125] + [0.0125] * 3, atol=1e-7)
    assert sum(smoothed) == pytest.approx(1.0)


def test_a_large_vocabulary_is_cut_and_says_so():
    left = label_smoothing_figure((0.1,), vocab_size=1500).axes[0]
    assert "(and 1,492 more)" in left.get_xticklabels()[-1].get_text()
    assert len(left.containers[1]) == 8
    assert left.containers[1][4].get_height() == pytest.approx(0.9 + 0.1 / 1500)


def test_the_loss_over_confidence_is_the_formula():
    # V = 4: (1 - eps + eps / V) -log p, and eps / V -log((1 - p) / 3) three times.
    p, eps = 0.7, 0.2
    expected = -(1 - eps + eps / 4) * math.log(p) - 3 * eps / 4 * math.log((1 - p) / 3)
    assert loss_by_confidence(np.array([p]), 4, eps)[0] == pytest.approx(expected, rel=1e-6)
    assert loss_by_confidence(np.array([p]), 4, 0.0)[0] == pytest.approx(-math.log(p), rel=1e-6)


def test_the_marked_point_is_the_lowest():
    right = label_smoothing_figure((0.1,), vocab_size=8).axes[1]
    (mark,) = [line for line in right.lines if line.get_label().startswith("_")]
    probabilities, losses = lines_of(right)["ε = 0.1"]
    assert mark.get_xdata()[0] == pytest.approx(0.9125)
    assert mark.get_ydata()[0] <= losses.min()
    assert abs(probabilities[losses.argmin()] - 0.9125) < 0.02
    one_hot = lines_of(right)["one-hot (ε = 0)"][1]
    assert (np.diff(one_hot) < 0).all()  # without smoothing surer is always better


@pytest.mark.parametrize("rates", [(0.95,), (-0.1,), (0.1, 0.2, 0.3, 0.4)])
def test_impossible_rates_are_refused(rates):
    with pytest.raises(InputError, match="label_smoothing|number of rates"):
        label_smoothing_figure(rates)


def test_next_pieces_are_bars_with_the_chosen_one_marked():
    figure = next_piece_figure(["▁$chat", "▁chien"], [0.75, 0.25], "▁chien", "After: Le $1$")
    axis = figure.axes[0]
    assert [bar.get_width() for bar in axis.patches] == [0.75, 0.25]
    assert [text.get_text() for text in axis.texts] == ["75.00%", "25.00%  chosen"]
    assert axis.patches[0].get_facecolor() != axis.patches[1].get_facecolor()
    assert axis.yaxis_inverted()
    assert not any(label.get_parse_math() for label in axis.get_yticklabels())


def test_pieces_need_their_probabilities():
    with pytest.raises(InputError, match="2 pieces and 1 probabilities"):
        next_piece_figure(["a", "b"], [1.0])
