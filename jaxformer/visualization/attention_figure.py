"""Attention weights: one small matrix per head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from jaxformer.errors import InputError
from jaxformer.visualization.figures import SEQUENTIAL, load_matplotlib, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_WIDTH = 9.5  # inches of all heads in a row
_CELL = 0.2  # inches, which fits a token's name
_NARROWEST, _WIDEST = 1.5, 7.0  # inches of a matrix


@styled
def attention_figure(
    weights: ArrayLike,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    heads: Sequence[int] | None = None,
    title: str = "",
) -> Figure:
    """Draw the attention weights of some heads, each a matrix of queries (rows) by keys (columns).

    All heads share one scale from 0 to 1, so their darkness can be compared. A dot marks the
    strongest key of each query, if there is a single one.

    Args:
      weights: floating `[N, T, S]`: one layer, one sentence, all heads; rows sum to 1.
      query_tokens: T strings.
      key_tokens: S strings.
      heads: heads to draw, from 0, in this order; None: all.
      title: of the figure.

    Returns:
      A matplotlib figure: a notebook shows it, `figure.savefig(path)` and `write_figure` write it.

    Raises:
      InputError: shapes and tokens do not match, a head does not exist, weights are not between 0
        and 1, or matplotlib is missing.
    """
    weights = np.asarray(weights, np.float64)
    chosen = _check(weights, query_tokens, key_tokens, heads)
    width, height = _size(len(key_tokens)), _size(len(query_tokens))
    columns = min(len(chosen), max(1, int(MAX_WIDTH // (width + 0.25))))
    rows = math.ceil(len(chosen) / columns)
    labels = 0.085 * max(map(len, query_tokens)), 0.085 * max(map(len, key_tokens))  # inches
    figure = new_figure(
        columns * (width + 0.25) + labels[0] + 1.1, rows * (height + 0.45) + labels[1] + 0.6
    )
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place >= len(chosen):
            axis.set_visible(False)
            continue
        image = _draw_head(axis, weights[chosen[place]])
        axis.set_title(f"head {chosen[place]}")
        axis.set_yticks(range(len(query_tokens)), query_tokens, parse_math=False)
        axis.set_xticks(range(len(key_tokens)), key_tokens, parse_math=False, rotation=90)
        below = place + columns >= len(chosen)  # the last of its column
        axis.tick_params(length=0, labelbottom=below)
    figure.supxlabel("key", fontsize="medium")
    figure.supylabel("query", fontsize="medium")
    figure.colorbar(
        image, ax=axes, label="attention weight", shrink=min(1.0, 2.5 / height), aspect=15
    )
    if title:
        figure.suptitle(title, parse_math=False)
    return figure


def _draw_head(axis, weights: np.ndarray):
    colours = load_matplotlib().colormaps[SEQUENTIAL]
    image = axis.imshow(weights, cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
    for query, row in enumerate(weights):
        key = row.argmax()
        if np.count_nonzero(row == row[key]) == 1:
            ink = "white" if row[key] > 0.5 else "black"
            axis.plot(key, query, marker="o", markersize=2.5, color=ink, linestyle="none")
    for spine in axis.spines.values():
        spine.set_visible(True)
    return image


def _size(tokens: int) -> float:
    return min(max(_CELL * tokens, _NARROWEST), _WIDEST)


def _check(
    weights: np.ndarray,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    heads: Sequence[int] | None,
) -> list[int]:
    """Check the arguments; returns the heads to draw."""
    if weights.ndim != 3 or 0 in weights.shape:
        raise InputError(
            f"weights has shape {list(weights.shape)}; expected [heads, queries, keys] of one "
            "layer and one sentence, e.g. attention.cross[layer, row]"
        )
    for name, tokens, count in (
        ("query_tokens", query_tokens, weights.shape[1]),
        ("key_tokens", key_tokens, weights.shape[2]),
    ):
        if len(tokens) != count:
            raise InputError(
                f"{name} has {len(tokens)} tokens, but weights {list(weights.shape)} has {count}; "
                "remove the padding from the weights"
            )
    if not (weights.min() >= 0.0 and weights.max() <= 1.0 + 1e-3):  # NaN fails too
        raise InputError(
            f"weights range from {weights.min():g} to {weights.max():g}; attention weights are "
            "between 0 and 1 (scores need a softmax first)"
        )
    chosen = list(range(weights.shape[0])) if heads is None else [int(head) for head in heads]
    wrong = [head for head in chosen if not 0 <= head < weights.shape[0]]
    if wrong or not chosen:
        raise InputError(f"heads={chosen}: choose from 0 to {weights.shape[0] - 1}")
    return chosen
