"""Loss spikes, found by comparison with earlier intervals."""

from __future__ import annotations

import dataclasses
import statistics
from typing import NamedTuple

from jaxformer.config import TrainingConfig

WINDOW = 16  # good intervals whose median is the usual loss
NEEDED = 4  # intervals before a loss is judged


class Spike(NamedTuple):
    """An interval of training.log_every steps with a loss far above the usual.

    Attributes:
      step: updates done at its end.
      loss: its mean, nats per token.
      usual: median of the earlier intervals.
      before: a rollback may only use a checkpoint of fewer steps than this.
      rollbacks: rollbacks since the last good interval.
    """

    step: int
    loss: float
    usual: float
    before: int
    rollbacks: int


@dataclasses.dataclass
class SpikeDetector:
    """Compares each interval with the median of earlier ones; saved with each checkpoint.

    Sums are added step by step at full precision, so that a run resumed within an interval judges
    like an uninterrupted one.

    Attributes:
      losses: of the last good intervals, nats per token, at most `WINDOW`.
      loss, tokens: sums of the current interval.
      restored: steps of the checkpoints restored since the last good interval.
    """

    losses: list[float] = dataclasses.field(default_factory=list)
    loss: float = 0.0
    tokens: float = 0.0
    restored: list[int] = dataclasses.field(default_factory=list)

    def add(self, loss: float, tokens: float) -> None:
        """Add the sums of an update that was not skipped."""
        self.loss += loss
        self.tokens += tokens

    def end_interval(self, step: int, settings: TrainingConfig) -> Spike | None:
        """Judge the interval that ends at `step`.

        A loss is judged once there are `NEEDED` earlier ones and a checkpoint from before its
        interval.
        """
        loss, tokens = self.loss, self.tokens
        self.loss = self.tokens = 0.0
        if not tokens:
            return None
        mean, begin = loss / tokens, step - settings.log_every
        saved = begin >= min(settings.save_every, settings.eval_every)
        if settings.spike_factor and saved and len(self.losses) >= NEEDED:
            usual = statistics.median(self.losses)
            if mean > settings.spike_factor * usual:
                before = self.restored[-1] if self.restored else begin + 1
                return Spike(step, mean, usual, before, len(self.restored))
        self.losses = [*self.losses, mean][-WINDOW:]
        self.restored = []
        return None
