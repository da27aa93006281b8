"""Which checkpoints are good, which may go, and what killed or failed saves left behind."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError
from jaxformer.storage.file_trees import (
    as_path,
    copy_tree,
    delete_tree,
    is_link,
    is_local,
    reason,
)
from jaxformer.storage.manifest import MANIFEST, describe, verify
from jaxformer.storage.steps import best_steps, list_steps, step_folders

MINIMUM = 2  # verified checkpoints that always stay: should one be damaged, there is another
REFUSED, DELETING, UNFINISHED = "refused", "deleting", "orbax-checkpoint-tmp"
SAVING = "saving"  # `STEP.saving` is there from before a save begins until its manifest is written


def find_verified(directory: Any, report: Callable[[str], None]) -> int | None:
    """Step of the newest checkpoint of which every file is as it was written.

    Newer ones that are not are reported and set aside.

    Returns:
      None if there are no checkpoints at all.

    Raises:
      InputError: there are some, but none is good, and nothing is touched; or a damaged one cannot
        be set aside.
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
        kept = set_aside(directory / str(newer), report)
        report(
            f"REFUSED: the checkpoint of step {newer:,} in {directory} is damaged or unfinished: "
            f"{problem}; going back to the one of step {step:,}, and keeping this one as "
            f"{kept.name} until you delete it"
        )
    return step


def remove_old(
    directory: Any, *, keep: int, best_metric: str, verified: set[int], report: Callable
) -> list[int]:
    """Delete all but the newest `keep` checkpoints, at least two, and the best ones.

    Nothing goes unless two of those that stay are known to be good. What was refused stays, and so
    does a link that leads nowhere: the disk behind it may come back.

    Args:
      directory: of the checkpoints, a path of etils.
      keep: how many of the newest stay.
      best_metric: by which the best is found; that of each way of measuring stays.
      verified: steps whose files this process has checked or hashed.
      report: is told of checkpoints that cannot be ranked or deleted, and of links.

    Returns:
      The steps that went.

    Raises:
      InputError: the directory cannot be listed.
    """
    steps = list_steps(directory)
    stay = set(steps[-max(keep, MINIMUM) :]) | best_steps(directory, best_metric, report)
    if len(stay & verified) < MINIMUM:
        return []
    gone = []
    for step in step_folders(directory):
        folder = directory / str(step)
        if step >= steps[-1] or step in stay or not folder.exists():
            continue
        try:
            remove(folder, report)
        except OSError as error:
            report(f"the old checkpoint {folder} could not be deleted: {reason(error)}")
        else:
            gone.append(step)
    return gone


def remove(path: Any, report: Callable[[str], None]) -> None:
    """Delete a checkpoint, if it is there, so that no moment leaves a part of it under its name.

    Args:
      path: of the checkpoint, a path of etils.
      report: is told of links; what they lead to is not deleted.

    Raises:
      OSError: it cannot be deleted, or not all of it.
    """
    if is_link(path):
        delete_tree(path, report)
    elif not path.exists():
        return
    elif not is_local(path):  # object stores cannot rename
        (path / MANIFEST).unlink(missing_ok=True)
        delete_tree(path, report)
    else:
        renamed = path.with_name(f"{path.name}.{DELETING}")
        delete_tree(renamed, report)
        path.rename(renamed)
        delete_tree(renamed, report)


def set_aside(path: Any, report: Callable[[str], None]) -> Any:
    """Take a refused checkpoint out of the way of the save that repeats its step.

    `20` becomes `20.refused`, or `20.refused.2` where that is taken, and so on. What it holds may
    be all that is left of those steps: to delete it is for the user to decide. An object store
    cannot rename, so there it is copied before it is deleted.

    Args:
      path: of the checkpoint, a path of etils.
      report: see `remove`.

    Returns:
      Where it is now.

    Raises:
      InputError: it cannot be moved.
    """
    first = path.with_name(f"{path.name}.{REFUSED}")
    others = (first.with_name(f"{first.name}.{number}") for number in itertools.count(2))
    target = next(free for free in itertools.chain([first], others) if not _is_taken(free))
    try:
        if is_local(path):
            os.rename(path, target)
        else:
            copy_tree(path, target)
            remove(path, report)
    except OSError as error:
        raise InputError(
            f"the damaged checkpoint {path} cannot be set aside as {target}: {reason(error)}; move "
            "it away, or make its folder writable"
        ) from error
    return target


def _is_taken(path: Any) -> bool:
    return is_link(path) or path.exists()


def refused_folders(directory: Path) -> list[Any]:
    """What was set aside in a directory, by name; nothing where it cannot be listed."""
    try:
        paths = list(as_path(directory).iterdir())
    except OSError:
        return []
    found = [path for path in paths if re.fullmatch(rf"\d+\.{REFUSED}(\.\d+)?", path.name)]
    return sorted(found, key=lambda path: path.name)


def saving_mark(directory: Any, step: int) -> Any:
    """The file that tells a save that was cut short from a checkpoint that lost its manifest."""
    return directory / f"{step}.{SAVING}"


def clear_unfinished(directory: Any, report: Callable[[str], None]) -> None:
    """Delete what killed or failed saves and deletions left in a directory.

    Args:
      directory: of the checkpoints, a path of etils.
      report: is told what cannot be deleted, which does no harm but takes up room, and of links.

    Raises:
      OSError: the directory cannot be listed.
    """
    for path in list(directory.iterdir()):
        try:
            if re.fullmatch(rf"\d+\.({UNFINISHED}.*\.)?{DELETING}", path.name):
                delete_tree(path, report)
            elif re.fullmatch(rf"\d+\.{UNFINISHED}.*", path.name):
                remove(path, report)  # renamed at least: the save of its step needs the name
            elif re.fullmatch(rf"\d+\.{SAVING}", path.name):
                folder = directory / path.name.partition(".")[0]
                if not (folder / MANIFEST).exists():
                    remove(folder, report)
                delete_tree(path, report)
        except OSError as error:
            report(f"{path} is left over and could not be deleted: {reason(error)}")
