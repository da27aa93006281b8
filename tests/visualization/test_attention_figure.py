"""Small multiples of attention: the right heads, the right numbers, the right names."""

import numpy as np
import pytest

from jaxformer import visualization
from jaxformer.errors import InputError
from jaxformer.visualization.attention_figure import attention_figure

QUERIES, KEYS = ["▁le", "▁$5", "$6"], ["▁the", "</s>"]


def draw_weights(heads=3, queries=3, keys=2):
    weights = np.random.default_rng(1).random((heads, queries, keys))
    return weights / weights.sum(axis=-1, keepdims=True)


def panels(figure):
    """The visible axes that hold a matrix."""
    return [axis for axis in figure.axes if axis.get_visible() and axis.get_title(loc="left")]


def test_each_head_is_a_matrix_on_the_same_scale():
    weights = draw_weights()
    figure = attention_figure(weights, QUERIES, KEYS)
    axes = panels(figure)
    assert [axis.get_title(loc="left") for axis in axes] == ["head 0", "head 1", "head 2"]
    for axis, expected in zip(axes, weights, strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), expected)
        assert axis.images[0].get_clim() == (0.0, 1.0)


def test_chosen_heads_come_in_the_order_asked_for():
    weights = draw_weights()
    axes = panels(attention_figure(weights, QUERIES, KEYS, heads=[2, 0]))
    assert [axis.get_title(loc="left") for axis in axes] == ["head 2", "head 0"]
    np.testing.assert_array_equal(axes[0].images[0].get_array(), weights[2])


def test_the_strongest_key_of_each_query_is_marked_unless_there_is_a_tie():
    weights = np.array([[[0.1, 0.9], [0.5, 0.5], [0.8, 0.2]]])
    (axis,) = panels(attention_figure(weights, QUERIES, KEYS))
    marks = [(int(line.get_xdata()[0]), int(line.get_ydata()[0])) for line in axis.lines]
    assert marks == [(1, 0), (0, 2)]


def test_tokens_are_text_and_never_formulas(tmp_path):
    figure = attention_figure(draw_weights(), QUERIES, KEYS, title="$x$ <b>")
    axis = panels(figure)[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == QUERIES
    assert [label.get_text() for label in axis.get_xticklabels()] == KEYS
    assert not any(label.get_parse_math() for label in axis.get_yticklabels())
    visualization.write_figure(figure, tmp_path / "heads.svg")
    svg = (tmp_path / "heads.svg").read_text("utf-8")
    assert "<!-- ▁$5 -->" in svg and "<b>" not in svg


def test_many_heads_go_below_each_other_with_names_of_keys_under_each_column():
    figure = attention_figure(draw_weights(8, 3, 20), QUERIES, [str(n) for n in range(20)])
    axes = panels(figure)
    columns = sum(axis.get_subplotspec().is_first_row() for axis in axes)
    assert len(axes) == 8 and columns == 2
    shown = [axis.xaxis.get_tick_params()["labelbottom"] for axis in axes]
    assert shown == [False] * 6 + [True] * 2


def test_rows_without_any_key_are_allowed():
    weights = np.zeros((1, 3, 2))
    assert not panels(attention_figure(weights, QUERIES, KEYS))[0].lines


@pytest.mark.parametrize(
    ("weights", "heads", "message"),
    [
        (draw_weights()[0], None, r"shape \[3, 2\]; expected \[heads, queries, keys\]"),
        (draw_weights(queries=4), None, "query_tokens has 3 tokens"),
        (draw_weights(keys=5), None, "key_tokens has 2 tokens"),
        (draw_weights() * 3 - 1, None, " -?[0-9.]+ to [0-9.]+; .*between 0 and 1"),
        (draw_weights() * np.nan, None, "weights .*nan"),
        (draw_weights(), [3], "choose from 0 to 2"),
        (draw_weights(), [-1], "choose from 0 to 2"),
        (draw_weights(), [], "choose from 0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(weights, heads, message):
    with pytest.raises(InputError, match=message):
        attention_figure(weights, QUERIES, KEYS, heads)


def test_the_package_has_the_function_under_its_name():
    assert visualization.attention_figure is attention_figure
