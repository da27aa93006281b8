"""Start a run from the parameters of another, matched by path; differences are reported."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path

import jax

from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.parallel.sharding import path_name
from jaxformer.storage.parameters import load_matching, stored_shapes
from jaxformer.tasks.open_run import StoredRun, find_checkpoint
from jaxformer.training.metrics import log
from jaxformer.training.setup import Run
from jaxformer.training.state import TrainState

VOCABULARY_PARAMETERS = ("*embedding/embedding", "output_projection/*")


def warm_start(run: Run, state: TrainState) -> TrainState:
    """`state` with the parameters of `init_from`, matched by path; the rest stays as it is.

    Moments and schedule start fresh. A moving average starts from the same parameters.

    Args:
      run: its configuration names the other workdir and the parameters that may differ.
      state: the first state of the run.

    Raises:
      InputError: as `fitting_parameters`.
    """
    folder, names = fitting_parameters(run)
    params = load_matching(folder, run.abstract.params, names, state.params)
    ema = state.ema_params and jax.tree.map(jax.numpy.copy, params)
    total = len(jax.tree.leaves(params))
    fresh = f"; {total - len(names)} start fresh" if len(names) < total else ""
    log(f"init_from {folder}: {len(names)} of {total} parameters{fresh}")
    return state._replace(params=params, ema_params=ema)


def fitting_parameters(run: Run) -> tuple[Path, set[str]]:
    """The checkpoint that `init_from` names, and the paths of the parameters to take from it.

    Args:
      run: as for `warm_start`.

    Raises:
      InputError: the workdir or the checkpoint cannot be read; or parameters that
        `init_from_allow` does not name are missing, surplus, of another shape, or belong to another
        vocabulary. The message lists all of them.
    """
    name = run.config.init_from
    stored, folder = find_checkpoint(name)
    have = stored_shapes(folder)
    want = {path_name(path): leaf.shape for path, leaf in _leaves(run.abstract.params)}
    theirs = stored.task.describe_vocabularies(stored.vocabularies)
    ours = run.task.describe_vocabularies(run.vocabularies)
    problems = differences(have, want, other_vocabulary=not _same(theirs, ours))
    patterns = [one.strip() for one in run.config.init_from_allow.split(",") if one.strip()]
    refused = sorted(
        path
        for path in problems
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
    )
    if refused:
        shown = "\n  ".join(f"{path}: {problems[path]}" for path in refused)
        flags = _vocabulary_flags(stored, theirs)
        hint = "" if _same(theirs, ours) else f"; to keep its vocabulary, start with {flags}"
        raise InputError(
            f"init_from={name!r} does not fit this model:\n  {shown}\n"
            "name those that may start fresh in init_from_allow, by patterns such as "
            f"{refused[0]}{hint}"
        )
    fitting = want.keys() & have.keys() - problems.keys()
    if not fitting:
        raise InputError(f"init_from={name!r}: not one parameter fits; leave init_from empty")
    return folder, fitting


def differences(
    have: dict[str, tuple[int, ...]], want: dict[str, tuple[int, ...]], *, other_vocabulary: bool
) -> dict[str, str]:
    """What is wrong with each parameter that cannot be taken as it is.

    Args:
      have: shapes of the stored parameters by path.
      want: shapes of the model's parameters by path.
      other_vocabulary: rows of the embeddings belong to other pieces.
    """
    problems = {name: "missing" for name in want.keys() - have.keys()}
    problems |= {name: "not in the model" for name in have.keys() - want.keys()}
    for name in have.keys() & want.keys():
        if have[name] != want[name]:
            problems[name] = f"{have[name]} instead of {want[name]}"
        elif other_vocabulary and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in VOCABULARY_PARAMETERS
        ):
            problems[name] = "its rows belong to another vocabulary"
    return problems


def _leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def _same(theirs: Sequence[Vocabulary], ours: Sequence[Vocabulary]) -> bool:
    return [one.fingerprint for one in theirs] == [one.fingerprint for one in ours]


def _vocabulary_flags(stored: StoredRun, vocabularies: Sequence[Vocabulary]) -> str:
    files = list(dict.fromkeys(one.file for one in vocabularies))
    flags = ("model_file", "target_model_file")
    return " ".join(
        f"--config.tokenizer.{flag}={stored.workdir.path / file}"
        for flag, file in zip(flags, files, strict=False)
    )
