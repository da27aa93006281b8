"""Which checkpoints are good, which may go, and what killed or failed saves left behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jaxformer.errors import InputError
from jaxformer.storage.manifest import MANIFEST, describe, verify
from jaxformer.storage.steps import list_steps, ranked_steps, step_folders

MINIMUM = 2  # verified checkpoints that always stay: should one be damaged, there is another
REFUSED, DELETING, UNFINISHED = "refused", "deleting", "orbax-checkpoint-tmp"
SAVING = "saving"  # `STEP.saving` is there from before a save begins until its manifest is written


def find_verified(directory: Any, report: Callable[[str], None]) -> int | None:
    """Step of the newest checkpoint of which every file is as it was written.

    Newer ones that are not are reported and set aside.

    Returns:
      None if there are no checkpoints at all.

    Raises:
      InputError: there are some, but none is good; nothing is touched.
    """
    refused = {}
    for step in reversed(step_folders(directory)):
        problems = verify(directory / str(step))
        if not problems:
            break
        refused[step] = describe(problems)
    else:
        if not refused:
            return None
        listed = "".join(f"\n  {step}: {problem}" for step, problem in refused.items())
        raise InputError(
            f"no checkpoint in {directory} is good:{listed}\ncopy one of them again, or start "
            "anew in another --workdir; if they are older than manifests and you trust them: "
            f"python -m jaxformer verify --workdir={directory.parent} --accept"
        )
    for newer, problem in refused.items():
        report(
            f"REFUSED: the checkpoint of step {newer:,} in {directory} is damaged or unfinished: "
            f"{problem}; going back to the one of step {step:,}"
        )
        set_aside(directory / str(newer))
    return step


def remove_old(
    directory: Any, *, keep: int, best_metric: str, verified: set[int], report: Callable
) -> list[int]:
    """Delete all but the newest `keep` checkpoints, at least two, and the best one.

    Nothing goes unless two of those that stay are known to be good.

    Args:
      directory: of the checkpoints, a path of etils.
      keep: how many of the newest stay.
      best_metric: by which the best is found.
      verified: steps whose files this process has checked or hashed.
      report: is told of checkpoints that cannot be ranked.

    Returns:
      The steps that went.
    """
    steps = list_steps(directory)
    stay = set(steps[-max(keep, MINIMUM) :]) | set(ranked_steps(directory, best_metric, report)[:1])
    if len(stay & verified) < MINIMUM:
        return []
    gone = [step for step in step_folders(directory) if step < steps[-1] and step not in stay]
    for step in gone:
        remove(directory / str(step))
    for path in list(directory.iterdir()):
        if re.fullmatch(rf"\d+\.{REFUSED}", path.name):
            path.rmtree(missing_ok=True)
    return gone


def remove(path: Any) -> None:
    """Delete a checkpoint, if it is there, so that no moment leaves a part of it under its name."""
    if not path.exists():
        return
    if "://" in str(path):  # object stores cannot rename
        (path / MANIFEST).unlink(missing_ok=True)
        path.rmtree(missing_ok=True)
        return
    renamed = path.with_name(f"{path.name}.{DELETING}")
    renamed.rmtree(missing_ok=True)
    path.rename(renamed)
    renamed.rmtree()


def set_aside(path: Any) -> None:
    """Take a refused checkpoint out of the way of the save that repeats its step.

    It goes with the next old checkpoint; an object store, which cannot rename, loses it now.
    """
    if "://" in str(path):
        remove(path)
        return
    renamed = path.with_name(f"{path.name}.{REFUSED}")
    renamed.rmtree(missing_ok=True)
    path.rename(renamed)


def saving_mark(directory: Any, step: int) -> Any:
    """The file that tells a save that was cut short from a checkpoint that lost its manifest."""
    return directory / f"{step}.{SAVING}"


def clear_unfinished(directory: Any) -> None:
    """Delete what killed or failed saves and deletions left in a directory."""
    for path in list(directory.iterdir()):
        if re.fullmatch(rf"\d+\.({DELETING}|{UNFINISHED}.*)", path.name):
            path.rmtree(missing_ok=True)
        elif re.fullmatch(rf"\d+\.{SAVING}", path.name):
            folder = directory / path.name.partition(".")[0]
            if not (folder / MANIFEST).exists():
                remove(folder)
            path.unlink(missing_ok=True)
