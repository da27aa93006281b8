"""Which checkpoints are good, which may be deleted, and the leftovers of killed or failed saves."""

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
from jaxformer.storage.measurement import Ranking
from jaxformer.storage.steps import best_steps, list_steps, step_folders

MINIMUM = 2  # verified checkpoints that always stay, in case one is damaged
REFUSED, DELETING, UNFINISHED = "refused", "deleting", "orbax-checkpoint-tmp"
SAVING = "saving"  # `STEP.saving` exists from before a save until its manifest is written


def find_verified(directory: Any, report: Callable[[str], None]) -> int | None:
    """Step of the newest checkpoint whose files are all unchanged since saving.

    Newer, damaged ones are reported and set aside.

    Returns:
      The step; None if there are no checkpoints.

    Raises:
      InputError: none is good, and nothing was touched; or a damaged one cannot be set aside.
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
            "over in another --workdir; if a version without manifests wrote them and you trust "
            f"them: python -m jaxformer verify --workdir={directory.parent} --accept"
        )
    for newer, problem in refused.items():
        kept = set_aside(directory / str(newer), report)
        report(
            f"REFUSED: the checkpoint of step {newer:,} in {directory} is damaged or incomplete: "
            f"{problem}; going back to step {step:,}; the damaged one is kept as {kept.name} until "
            "you delete it"
        )
    return step


def remove_old(
    directory: Any, *, keep: int, ranking: Ranking, verified: set[int], report: Callable
) -> list[int]:
    """Delete all but the newest `keep` checkpoints (at least two) and the best ones.

    Nothing is deleted unless two of the remaining ones are known to be good. Refused checkpoints
    stay, and so do dangling links, whose disk may come back.

    Args:
      directory: of the checkpoints, a path of etils.
      keep: how many of the newest stay.
      ranking: by which the best is found; that of each way of measuring stays.
      verified: steps whose files this process has checked or hashed.
      report: called for checkpoints that cannot be ranked or deleted, and for links.

    Returns:
      The deleted steps.

    Raises:
      InputError: the directory cannot be listed.
    """
    steps = list_steps(directory)
    stay = set(steps[-max(keep, MINIMUM) :]) | best_steps(directory, ranking, report)
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
    """Delete a checkpoint if it exists; its name never refers to a part of it.

    Args:
      path: of the checkpoint, a path of etils.
      report: called for links, whose targets are not deleted.

    Raises:
      OSError: it cannot be deleted completely.
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
    """Rename a refused checkpoint, so that its step can be saved again.

    `20` becomes `20.refused`, or `20.refused.2` if that exists, and so on. It may hold all that is
    left of those steps, so only the user may delete it. An object store cannot rename, so there it
    is copied and then deleted.

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
    """The refused checkpoints in a directory, by name; empty if it cannot be listed."""
    try:
        paths = list(as_path(directory).iterdir())
    except OSError:
        return []
    found = [path for path in paths if re.fullmatch(rf"\d+\.{REFUSED}(\.\d+)?", path.name)]
    return sorted(found, key=lambda path: path.name)


def saving_mark(directory: Any, step: int) -> Any:
    """The file that distinguishes an interrupted save from a checkpoint without its manifest."""
    return directory / f"{step}.{SAVING}"


def clear_unfinished(directory: Any, report: Callable[[str], None]) -> None:
    """Delete the leftovers of killed or failed saves and deletions.

    Args:
      directory: of the checkpoints, a path of etils.
      report: called for links, and for what cannot be deleted and only takes up space.

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
