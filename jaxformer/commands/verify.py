"""`python -m jaxformer verify`: whether every file of the checkpoints is as it was written."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of the run")
    parser.add_argument(
        "--accept",
        action="store_true",
        help="give a manifest to checkpoints without one, which an older version wrote: from now "
        "on they count as good, whatever is in them",
    )


def run(args: argparse.Namespace) -> int:
    from jaxformer.errors import InputError
    from jaxformer.storage.manifest import MANIFEST, describe, read_manifest, verify, write_manifest
    from jaxformer.storage.retention import saving_mark
    from jaxformer.storage.steps import step_folders
    from jaxformer.storage.workdir import Workdir

    directory = Workdir(Path(args.workdir)).checkpoints
    names = [str(step) for step in step_folders(directory)]
    names += sorted(path.name for path in directory.glob("average_*") if path.is_dir())
    if not names:
        raise InputError(f"{directory} holds no checkpoint")
    damaged = 0
    for name in names:
        folder = directory / name
        last = "_CHECKPOINT_METADATA" if name.isdecimal() else "steps.txt"
        whole = (folder / last).exists() and not saving_mark(directory, name).exists()
        if args.accept and whole and not (folder / MANIFEST).exists():
            print(f"{name}: accepted as it is, {write_manifest(folder):,} bytes")
            continue
        problems = verify(folder)
        damaged += bool(problems)
        if problems:
            print(f"{name}: DAMAGED: {describe(problems)}")
        else:
            size = sum(record.size for record in read_manifest(folder).values())
            print(f"{name}: good, {size:,} bytes")
    if damaged:
        raise InputError(f"{damaged} of {len(names)} checkpoints in {directory} are damaged")
    return 0
