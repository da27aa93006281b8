"""A `jax.profiler` trace of a few training steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax

from jaxformer.training.metrics import log

WARM_UP_STEPS = 10  # first steps of a start, not traced because they compile and initialise


class StepTrace:
    """Runs steps, and traces some of them after the warm-up of this start.

    The trace marks each step as `train` with its number (`step_num`). `run` waits for the last
    traced step, so the trace is complete.

    Args:
      folder: receives the trace.
      first_step: at which this start begins.
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
        """Call `function(*arguments)` as a step.

        Args:
          step: its number, from 0.
          function: the step.
          *arguments: passed to the step.

        Returns:
          What `function` returns.
        """
        if self._count and step == self._first and not self._started:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # Python calls would drown the rest
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
            "          open its perfetto_trace.json.gz with ui.perfetto.dev, or everything with "
            f"xprof --logdir={self._folder}"
        )
