"""A trace of a few training steps, made by `jax.profiler`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax

from jaxformer.training.metrics import log

WARM_UP_STEPS = 10  # of a start, not traced: compilation, and the first of everything


class StepTrace:
    """Runs steps, and traces some of them after the warm-up of this start.

    The trace has one marker `train` a step with its number (`step_num`). It holds what the devices
    did in full: the last of its steps is waited for.

    Args:
      folder: for the trace.
      first_step: step that this start begins at.
      count: steps to trace; 0: none.
    """

    def __init__(self, folder: Path, first_step: int, count: int):
        self._folder = folder
        self._first = first_step + WARM_UP_STEPS
        self._last = self._first + count - 1
        self._count = count
        self._tracing = self._started = False

    def __enter__(self) -> StepTrace:
        return self

    def __exit__(self, *_) -> None:
        if self._count and not self._started:
            log(f"profile   none: this start ended before step {self._first:,}")
        self._stop()

    def run(self, step: int, function: Callable, *arguments):
        """`function(*arguments)` as step number `step`, counted from 0."""
        if self._count and step == self._first and not self._started:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every Python call would drown the rest
            jax.profiler.start_trace(
                self._folder, create_perfetto_trace=True, profiler_options=options
            )
            self._tracing = self._started = True
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            outputs = function(*arguments)
        if self._tracing and step == self._last:
            jax.block_until_ready(outputs)
            self._stop()
        return outputs

    def _stop(self) -> None:
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        newest = max(self._folder.glob("plugins/profile/*"))
        log(
            f"profile   {newest}\n"
            "          ui.perfetto.dev opens its perfetto_trace.json.gz, "
            f"xprof --logdir={self._folder} all of it"
        )
