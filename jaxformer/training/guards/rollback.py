"""The way back from a spike of the loss, to a state from before it."""

from __future__ import annotations

import jax

from jaxformer.storage.agreement import ask_first_process
from jaxformer.storage.checkpoint import Checkpointer, list_steps
from jaxformer.storage.manifest import verify
from jaxformer.training.metrics import log
from jaxformer.training.recorder import Recorder
from jaxformer.training.setup import Run
from jaxformer.training.state import TrainState, at_step

ROLLBACKS = 3  # in a row, each to an older checkpoint, before training ends


def roll_back(
    run: Run, checkpointer: Checkpointer, recorder: Recorder, state: TrainState
) -> tuple[TrainState, int]:
    """Answer `recorder.spike`: an older state takes the place of `state`, whose memory is freed.

    The step goes on from the end of the interval, so that the order of the batches, the learning
    rate and the dropout stay functions of the step: it is as if all updates since the checkpoint
    had been skipped. Spikes in a row go back one checkpoint further each.

    Returns:
      The state and its step.

    Raises:
      FloatingPointError: `ROLLBACKS` in a row have not helped, or no checkpoint is old enough.
    """
    spike, settings = recorder.spike, run.config.training
    found = (
        f"the loss of the {settings.log_every} steps up to {spike.step:,} is {spike.loss:.3f}, "
        f"more than training.spike_factor={settings.spike_factor:g} times the usual "
        f"{spike.usual:.3f}"
    )
    advice = "lower optimizer.learning_rate, or set optimizer.clip_norm"
    if spike.rollbacks >= ROLLBACKS:
        raise FloatingPointError(
            f"{found}, and going back {ROLLBACKS} times has not helped; {advice}"
        )
    checkpointer.newest_verified()  # none is being written any more
    target = ask_first_process(lambda: newest_scheduled(run, spike.before))
    if target is None:
        raise FloatingPointError(
            f"{found}, and {run.workdir.checkpoints} holds no checkpoint of a step before "
            f"{spike.before:,} to go back to; {advice}, or raise training.keep_checkpoints"
        )
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    restored, _ = checkpointer.restore(target, run.abstract)
    log(f"step {spike.step:,}  {found}: back to the state of step {target:,}, on with new batches")
    recorder.rolled_back(target)
    return at_step(restored, spike.step), spike.step


def newest_scheduled(run: Run, before: int) -> int | None:
    """Step of the newest good checkpoint below `before` that an uninterrupted run has as well.

    A signal saves others besides: to go back to one of them would make the run another one.
    """
    settings, folder = run.config.training, run.workdir.checkpoints
    for step in reversed(list_steps(folder)):
        scheduled = step % settings.save_every == 0 or step % settings.eval_every == 0
        if step >= before or not scheduled:
            continue
        problems = verify(folder / str(step))
        if not problems:
            return step
        log(f"REFUSED: the checkpoint of step {step:,} in {folder} is damaged: {problems[0]}")
    return None
