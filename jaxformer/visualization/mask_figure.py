"""Which tokens of a batch may attend to which: padding, causal and packed masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError
from jaxformer.ops.attention_mask import AttentionMask, ModelMasks, model_masks
from jaxformer.visualization.figures import COLOURS, FAINT, PAPER, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

END, BEGINNING, PADDING = "</s>", "<s>", "<pad>"
MAX_TOKENS = 48  # of a packed row; more would be illegible
# Reasons for a query and a key: name, colour and pattern, so that colour is never the only cue.
ALLOWED, FUTURE, HIDDEN_PADDING, OTHER_SENTENCE = range(4)
_LOOKS = (
    ("may attend", COLOURS[0], ""),
    ("later token", PAPER, "////"),
    ("padding", FAINT, "...."),
    ("another sentence", "#F4DFA8", "xxxx"),
)
_CELL = 0.24  # inches
_GRID = "#9A9A9A"


class Row(NamedTuple):
    """A row of a batch: its tokens, and the masks of the batch."""

    name: str
    inputs: list[str]  # S tokens
    decoder_inputs: list[str]  # T tokens
    masks: ModelMasks
    index: int  # of the row within the batch of the masks


@styled
def masks_figure(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Figure:
    """Draw the masks of a batch: sentence pairs in padded rows, then packed into one row.

    The decoder's inputs are the target shifted right, as in training. Rows of the picture are rows
    of the batch; columns are encoder self-attention, decoder self-attention and cross-attention.
    The masks are the model's: `model_masks(...).encoder.to_mask(...)`.

    Args:
      pairs: two or more (source tokens, target tokens), without special tokens.

    Raises:
      InputError: fewer than two pairs, an empty sentence, or more than `MAX_TOKENS` in total.
    """
    rows = batch_rows(pairs)
    widths = [max(len(row.inputs) for row in rows), max(len(row.decoder_inputs) for row in rows)]
    widths = [widths[0], widths[1], widths[0]]
    heights = [max(len(row.inputs), len(row.decoder_inputs)) for row in rows]
    figure = new_figure(_CELL * sum(widths) + 3.6, _CELL * sum(heights) + 0.95 * len(rows) + 1.0)
    axes = figure.subplots(len(rows), 3, squeeze=False, width_ratios=widths, height_ratios=heights)
    for row, line in zip(rows, axes, strict=True):
        kinds = attention_kinds(row)
        _draw_mask(line[0], kinds["encoder"], row.inputs, row.inputs)
        _draw_mask(line[1], kinds["decoder"], row.decoder_inputs, row.decoder_inputs)
        _draw_mask(line[2], kinds["cross"], row.decoder_inputs, row.inputs)
        for axis, name in zip(line, ("encoder", "decoder", "decoder to encoder"), strict=True):
            axis.set_title(f"{row.name}, {name}", fontsize="medium", fontweight="bold")
            axis.set_anchor("NW")
    _draw_legend(figure)
    return figure


def batch_rows(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Row]:
    """The pairs as padded rows, followed by one packed row."""
    sources = [[*source, END] for source, _ in pairs]
    targets = [[BEGINNING, *target] for _, target in pairs]
    if len(pairs) < 2 or not all(source and target for source, target in pairs):
        raise InputError(f"{len(pairs)} sentence pairs: give two or more, none of them empty")
    longest = max(sum(map(len, sources)), sum(map(len, targets)))
    if longest > MAX_TOKENS:
        raise InputError(
            f"the packed row has {longest} tokens, special ones included, but a picture holds "
            f"{MAX_TOKENS}: give fewer or shorter sentences"
        )
    lengths = jnp.array([len(source) for source in sources], jnp.int32)
    padded = model_masks(inputs_lengths=lengths)
    rows = [
        Row(f"row {index}", _pad(source, sources), _pad(target, targets), padded, index)
        for index, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]
    packed = model_masks(inputs_segments=_segments(sources), targets_segments=_segments(targets))
    return [*rows, Row("packed", sum(sources, []), sum(targets, []), packed, 0)]


def attention_kinds(row: Row) -> dict[str, np.ndarray]:
    """Whether each query may attend to each key, or why not: int `[T, S]` by attention."""
    sides = {
        "encoder": (row.inputs, row.inputs),
        "decoder": (row.decoder_inputs, row.decoder_inputs),
        "cross": (row.decoder_inputs, row.inputs),
    }
    kinds = {}
    for name, (queries, keys) in sides.items():
        attention_mask = getattr(row.masks, name)
        size = len(queries), len(keys)
        allowed = _mask(attention_mask, size, row.index)
        segments = attention_mask.query_segments, attention_mask.key_segments
        reasons = (
            (OTHER_SENTENCE, AttentionMask(query_segments=segments[0], key_segments=segments[1])),
            (HIDDEN_PADDING, AttentionMask(key_lengths=attention_mask.key_lengths)),
            (FUTURE, AttentionMask(causal=attention_mask.causal)),
        )
        kind = np.full(size, ALLOWED)
        for reason, part in reasons:  # if several apply, the last one counts
            kind[~_mask(part, size, row.index)] = reason
        if not np.array_equal(kind == ALLOWED, allowed):
            raise InputError(f"{name}: a mask that is neither causal, padding nor segments")
        kinds[name] = kind
    return kinds


def _mask(attention_mask: AttentionMask, size: tuple[int, int], index: int) -> np.ndarray:
    """bool `[T, S]` of row `index`."""
    mask = attention_mask.to_mask(*size)
    if mask is None:
        return np.ones(size, bool)
    mask = np.asarray(mask)[:, 0]
    return np.broadcast_to(mask[index if mask.shape[0] > 1 else 0], size)


def _pad(tokens: list[str], among: list[list[str]]) -> list[str]:
    return tokens + [PADDING] * (max(map(len, among)) - len(tokens))


def _segments(sentences: list[list[str]]):
    numbers = [n for n, tokens in enumerate(sentences, start=1) for _ in tokens]
    return jnp.array([numbers], jnp.int32)


def _draw_mask(axis, kinds: np.ndarray, queries: list[str], keys: list[str]) -> None:
    from matplotlib.colors import ListedColormap

    edges = np.arange(len(keys) + 1) - 0.5, np.arange(len(queries) + 1) - 0.5
    for kind, (_, colour, hatch) in enumerate(_LOOKS):
        if not (kinds == kind).any():
            continue
        cells = np.ma.masked_array(np.zeros(kinds.shape), kinds != kind)
        look = {"cmap": ListedColormap([colour]), "hatch": hatch}
        axis.pcolor(*edges, cells, edgecolor=_GRID, linewidth=0.5, **look)
    axis.set_xticks(range(len(keys)), keys, parse_math=False, rotation=90, fontsize="small")
    axis.set_yticks(range(len(queries)), queries, parse_math=False, fontsize="small")
    axis.tick_params(length=0)
    axis.set_aspect("equal")
    axis.invert_yaxis()
    for spine in axis.spines.values():
        spine.set_visible(False)


def _draw_legend(figure) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=_GRID, label=name)
        for name, colour, hatch in _LOOKS
    ]
    figure.legend(
        handles=handles, loc="outside upper left", ncols=4,
        title="rows are queries, columns are keys",
        alignment="left",
    )  # fmt: skip
