"""Pictures of the paper's parts that need no trained model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError, check_range
from jaxformer.ops.losses import label_smoothed_cross_entropy
from jaxformer.ops.positions import MAX_WAVELENGTH, sinusoidal_positions
from jaxformer.visualization.figures import (
    COLOURS,
    DIVERGING,
    FAINT,
    INK,
    LINE_STYLES,
    MARKERS,
    new_figure,
    styled,
)
from jaxformer.visualization.trace import target_probabilities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_PIECES = 8  # of a vocabulary
MAX_PICTURE_SIDE = 4096  # positions or columns of a heat map; more would be invisible
MAX_CURVES = len(COLOURS)
MAX_STEPS = 10_000_000
HATCHES = ("", "///", "...", "xx")


@styled
def positions_figure(length: int = 100, d_model: int = 128) -> Figure:
    """Draw `sinusoidal_positions`: the heat map, and four of its columns as waves.

    Args:
      length: positions.
      d_model: D, even.

    Raises:
      InputError: a size is out of range or D is odd.
    """
    check_range("length", length, 2, MAX_PICTURE_SIDE)
    check_range("d_model", d_model, 2, MAX_PICTURE_SIDE)
    if d_model % 2:
        raise InputError(f"d_model={d_model} is odd; positions come in sin and cos pairs")
    encodings = sinusoidal_positions(length, d_model)  # [T, D]
    figure = new_figure(8.0, 6.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(5, 3))
    image = above.imshow(
        encodings.T,
        cmap=DIVERGING,
        vmin=-1.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, length - 0.5, d_model - 0.5, -0.5),
    )
    above.set(ylabel="column of d_model", title=f"Sinusoidal positions, d_model = {d_model}")
    figure.colorbar(image, ax=above, label="value added to the embedding", ticks=(-1, 0, 1))
    for place, column in enumerate(_wave_columns(length, d_model)):
        below.plot(
            np.arange(length),
            encodings[:, column],
            color=COLOURS[place // 2],
            linestyle=LINE_STYLES[place % 2],
            label=f"column {column}, {'cos' if column % 2 else 'sin'}",
        )
    below.set(xlabel="position in the sentence (tokens)", ylabel="value", ylim=(-1.1, 1.1))
    below.set_title("Columns 2i and 2i + 1: one angle, its sine and its cosine")
    below.grid(True)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def _wave_columns(length: int, d_model: int) -> list[int]:
    """Two pairs of columns: one with three waves over the positions, one with a single wave."""
    even = np.arange(0, d_model, 2)
    wavelengths = 2.0 * np.pi * MAX_WAVELENGTH ** (even / d_model)
    nearest = {int(even[np.abs(np.log(wavelengths * n / length)).argmin()]) for n in (3, 1)}
    return [column for pair in sorted(nearest) for column in (pair, pair + 1)]


@styled
def schedule_figure(
    schedules: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    num_steps: int,
    title: str = "Learning rate",
) -> Figure:
    """Draw learning rate schedules over the updates of a run.

    Args:
      schedules: by displayed name, a function of the number of updates done before, as
        `training.optimizer.make_schedule` returns it.
      num_steps: updates shown.
      title: of the picture.

    Returns:
      The figure.

    Raises:
      InputError: there are no schedules, or more than can be distinguished.
    """
    check_range("number of schedules", len(schedules), 1, MAX_CURVES)
    check_range("num_steps", num_steps, 2, MAX_STEPS)
    figure = new_figure(8.0, 4.6)
    axis = figure.subplots()
    counts = np.unique(np.linspace(0, num_steps - 1, 2000).astype(np.int32))
    for place, (name, schedule) in enumerate(schedules.items()):
        # Search the peak among all updates, and include it in those shown.
        rates = np.asarray(schedule(np.arange(num_steps, dtype=np.int32)), np.float64)
        rates = np.broadcast_to(rates, (num_steps,))
        peak = int(rates.argmax())
        shown = np.union1d(counts, [peak])
        axis.plot(
            shown + 1, rates[shown], label=name, color=COLOURS[place],
            linestyle=LINE_STYLES[place % len(LINE_STYLES)],
        )  # fmt: skip
        axis.plot(peak + 1, rates[peak], MARKERS[place], color=COLOURS[place], markersize=6)
    axis.set(xlabel="update", ylabel="learning rate", title=title, xlim=(0, num_steps))
    axis.set_ylim(bottom=0.0)
    axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.grid(True)
    axis.legend(title="mark: highest rate", alignment="left")
    return figure


def loss_by_confidence(
    probabilities: np.ndarray, vocab_size: int, label_smoothing: float
) -> np.ndarray:
    """The loss of a token if its correct piece has probability p and the others share the rest.

    Args:
      probabilities: `[K]`, p, within (0, 1).
      vocab_size: V.
      label_smoothing: eps.

    Returns:
      float32 `[K]`, nats.
    """
    right = jnp.zeros((), jnp.int32)

    def one(logs: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = jnp.full((vocab_size,), logs[1]).at[right].set(logs[0])
        return label_smoothed_cross_entropy(logits, right, label_smoothing).loss

    others = np.log1p(-probabilities) - np.log(vocab_size - 1)
    logs = (np.log(probabilities), others)
    return np.asarray(jax.lax.map(one, tuple(jnp.asarray(x, jnp.float32) for x in logs)))


@styled
def label_smoothing_figure(
    label_smoothing: Sequence[float] = (0.1,), vocab_size: int = 8
) -> Figure:
    """Draw the effect of label smoothing on a one-hot target and on the loss.

    Left: the target of one token. Right: the loss over the probability of the correct piece, with
    its minimum at `p = 1 - eps + eps / V`.

    Args:
      label_smoothing: eps, one or a few; 0 (one-hot) is always drawn too.
      vocab_size: V.

    Raises:
      InputError: a value is out of range or there are too many.
    """
    check_range("vocab_size", vocab_size, 2, 100_000)
    for value in label_smoothing:
        check_range("label_smoothing", value, 0.0, 0.9)
    rates = sorted({0.0, *label_smoothing})
    check_range("number of rates", len(rates), 1, len(HATCHES))
    figure = new_figure(9.6, 4.2)
    left, right = figure.subplots(1, 2)
    _draw_targets(left, rates, vocab_size)
    _draw_losses(right, rates, vocab_size)
    return figure


def _draw_targets(axis, rates: Sequence[float], vocab_size: int) -> None:
    shown = min(vocab_size, SHOWN_PIECES)
    target, width = shown // 2, 0.8 / len(rates)
    for place, rate in enumerate(rates):
        on, off = target_probabilities(vocab_size, rate)
        heights = [on if piece == target else off for piece in range(shown)]
        bars = axis.bar(
            np.arange(shown) + (place - (len(rates) - 1) / 2) * width, heights, 0.92 * width,
            color=COLOURS[place], hatch=HATCHES[place], edgecolor="white",
            label=_rate_name(rate),
        )  # fmt: skip
        values = [f"{h:.4g}" if rate or n == target else "" for n, h in enumerate(heights)]
        axis.bar_label(bars, values, rotation=90, fontsize="x-small", padding=2)
    names = ["correct" if piece == target else str(piece) for piece in range(shown)]
    if shown < vocab_size:
        names[-1] += f"\n(and {vocab_size - shown:,} more)"
    axis.set_xticks(range(shown), names)
    axis.set(xlabel="piece of the vocabulary", ylabel="probability", ylim=(0.0, 1.15))
    axis.set_title(f"The target of one token, {vocab_size:,} pieces")
    axis.legend(loc="upper left")


def _draw_losses(axis, rates: Sequence[float], vocab_size: int) -> None:
    # Evenly spaced log-odds: half of the points near certainty, where the smoothed losses rise.
    probabilities = 1.0 / (1.0 + np.exp(-np.linspace(-5.0, 9.0, 400)))
    highest = 0.0
    for place, rate in enumerate(rates):
        losses = loss_by_confidence(probabilities, vocab_size, rate)
        look = {"color": COLOURS[place]}
        axis.plot(
            probabilities, losses, label=_rate_name(rate), linestyle=LINE_STYLES[place], **look
        )
        if rate:
            best = np.array([1.0 - rate + rate / vocab_size])
            lowest = loss_by_confidence(best, vocab_size, rate)[0]
            highest = max(highest, lowest)
            axis.plot(best, lowest, MARKERS[place], **look)
            axis.annotate(
                f"{best[0]:.4g}", (best[0], lowest), (-6, -12), textcoords="offset points",
                ha="right", fontsize="small",
            )  # fmt: skip
    axis.set(xlabel="probability of the correct piece", ylabel="loss of the token (nats)")
    axis.set(xlim=(0.0, 1.0), ylim=(0.0, max(3.0, 1.6 * highest)))
    axis.set_title("Overconfidence is penalised")
    axis.grid(True)
    axis.legend(loc="upper right", title="mark: lowest loss", alignment="left")


def _rate_name(rate: float) -> str:
    return f"ε = {rate:g}" if rate else "one-hot (ε = 0)"


@styled
def next_piece_figure(
    pieces: Sequence[str], probabilities: Sequence[float], chosen: str = "", title: str = ""
) -> Figure:
    """Draw the most probable next pieces as bars, the first on top.

    Args:
      pieces: most probable first.
      probabilities: of the pieces.
      chosen: the piece that the search took, marked if it is among them.
      title: of the picture.

    Returns:
      The figure.

    Raises:
      InputError: there are no pieces, or a different number of probabilities.
    """
    if not pieces or len(pieces) != len(probabilities):
        raise InputError(f"{len(pieces)} pieces and {len(probabilities)} probabilities")
    figure = new_figure(6.4, 0.9 + 0.27 * len(pieces))
    axis = figure.subplots()
    places = np.arange(len(pieces))
    colours = [COLOURS[1] if piece == chosen else COLOURS[0] for piece in pieces]
    bars = axis.barh(places, probabilities, color=colours, height=0.75)
    labels = [
        f"{p:.2%}" + ("  chosen" if piece == chosen else "")
        for piece, p in zip(pieces, probabilities, strict=True)
    ]
    axis.bar_label(bars, labels, padding=3, color=INK)
    axis.set_yticks(places, pieces, parse_math=False)
    axis.invert_yaxis()
    axis.tick_params(axis="y", length=0)
    axis.set(xlabel="probability", xlim=(0.0, 1.2))
    axis.set_xticks((0.0, 0.25, 0.5, 0.75, 1.0))
    axis.spines["left"].set_color(FAINT)
    axis.set_title(title, parse_math=False)
    return figure
