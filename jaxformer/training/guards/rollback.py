"""Rolling back from a loss spike to an earlier checkpoint."""

from __future__ import annotations

import jax

from jaxformer.storage.agreement import ask_first_process
from jaxformer.storage.checkpoint import Checkpointer, list_steps
from jaxformer.storage.manifest import verify
from jaxformer.training.metrics import log
from jaxformer.training.recorder import Recorder
from jaxformer.training.setup import Run
from jaxformer.training.state import TrainState, at_step

ROLLBACKS = 3  # consecutive ones, each to an older checkpoint, before training ends


def roll_back(
    run: Run, checkpointer: Checkpointer, recorder: Recorder, state: TrainState
) -> tuple[TrainState, int]:
    """Replace `state` by that of an older checkpoint, in response to `recorder.spike`.

    The step number stays at the end of the interval, so that batches, learning rate and dropout
    remain functions of the step: it is as if all updates since the checkpoint had been skipped.
    Each consecutive spike goes back one checkpoint further.

    Args:
      run: the run.
      checkpointer: of the run.
      recorder: of the run, with a spike.
      state: the current state, whose memory is freed.

    Returns:
      The restored state and its step.

    Raises:
      FloatingPointError: `ROLLBACKS` rollbacks have not helped, or no checkpoint is old enough.
    """
    spike, settings = recorder.spike, run.config.training
    found = (
        f"the loss of the {settings.log_every} steps up to {spike.step:,} is {spike.loss:.3f}, "
        f"more than training.spike_factor={settings.spike_factor:g} times the usual "
        f"{spike.usual:.3f}"
    )
    advice = "lower optimizer.learning_rate, or set optimizer.clip_norm"
    if spike.rollbacks >= ROLLBACKS:
        raise FloatingPointError(f"{found}, and {ROLLBACKS} rollbacks have not helped; {advice}")
    checkpointer.newest_verified()  # waits until none is being written
    target = ask_first_process(lambda: newest_scheduled(run, spike.before))
    if target is None:
        raise FloatingPointError(
            f"{found}, and {run.workdir.checkpoints} holds no checkpoint from before step "
            f"{spike.before:,} to roll back to; {advice}, or raise training.keep_checkpoints"
        )
    for leaf in jax.tree.leaves(state):
        leaf.delete()
    restored, _ = checkpointer.restore(target, run.abstract)
    log(f"step {spike.step:,}  {found}: rolled back to step {target:,}, continuing on new batches")
    recorder.rolled_back(target)
    return at_step(restored, spike.step), spike.step


def newest_scheduled(run: Run, before: int) -> int | None:
    """Step of the newest good checkpoint below `before` that an uninterrupted run has too.

    A signal saves additional ones; rolling back to one of those would change the run.
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
