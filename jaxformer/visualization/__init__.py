"""Visualization of the model; the figures need matplotlib, the HTML page does not."""

from jaxformer.visualization.attention_figure import attention_figure
from jaxformer.visualization.figures import write_figure

__all__ = ["attention_figure", "write_figure"]
