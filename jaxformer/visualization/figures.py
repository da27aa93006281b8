"""The style that all pictures share, and how they are written: equal input gives equal bytes.

matplotlib is an optional dependency, loaded only here, when a picture is drawn. Figures are not
registered with pyplot, so nothing needs a display and nothing stays open.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.errors import InputError
from jaxformer.files.outputs import check_output, open_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito 2008, distinct with every common colour vision; their yellow is too faint.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (7, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
SEQUENTIAL = "Blues"  # from white, nothing, to dark, all: lightness alone tells the value
DIVERGING = "PuOr"  # around 0
INK, MUTED, FAINT, PAPER = "#222222", "#666666", "#D9D9D9", "#FFFFFF"
FORMATS = (".png", ".svg")
_DOTS_PER_INCH = 150
_STYLE = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "jaxformer",
    "figure.dpi": 100,
}


def load_matplotlib():
    """The module `matplotlib`.

    Raises:
      InputError: it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "pictures need matplotlib, which is not installed: pip install 'matplotlib>=3.9'"
        ) from None
    return matplotlib


def styled(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Make `draw` use our style, whatever the user's matplotlib settings are."""

    @functools.wraps(draw)
    def drawn(*args, **kwargs):
        matplotlib = load_matplotlib()
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches; a notebook shows it as the value of a cell."""
    return _figure_class()(figsize=(width, height), layout="constrained")


@functools.cache
def _figure_class():
    load_matplotlib()
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """Shown by a notebook without pyplot."""

        def _repr_png_(self) -> bytes:
            import io

            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=_DOTS_PER_INCH)
            return buffer.getvalue()

    return NotebookFigure


def check_picture_path(path: str | os.PathLike, name: str = "--output") -> Path:
    """`path` as a `Path`.

    Raises:
      InputError: it does not end in .png or .svg, or it cannot be written.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise InputError(f"{name}={path} must end in {' or '.join(FORMATS)}")
    return check_output(os.fspath(path), "picture.png", flag=name)


@styled
def write_figure(figure: Figure, path: str | os.PathLike, name: str = "path") -> Path:
    """Write a PNG or SVG that appears under its name only when it is complete.

    The file holds no date and no version, so equal figures give equal files.

    Args:
      figure: the figure.
      path: file to write, ending in .png or .svg.
      name: what the path is called in messages, such as a flag.

    Returns:
      `path` as a `Path`.

    Raises:
      InputError: `check_picture_path` refuses the path, or the disk does.
    """
    path = check_picture_path(path, name)
    nothing = {"Software": None} if path.suffix == ".png" else {"Date": None, "Creator": None}
    with open_output(path, flag=name, binary=True) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=_DOTS_PER_INCH, metadata=nothing)
    return path
