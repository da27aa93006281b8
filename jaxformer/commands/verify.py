"""`python -m jaxformer verify`: whether every file of the checkpoints is unchanged since saving."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of the run")
    parser.add_argument(
        "--accept",
        action="store_true",
        help="write manifests for checkpoints of an older version, which have none; from then on "
        "they count as good, whatever their content",
    )


def run(args: argparse.Namespace) -> int:
    from jaxformer.errors import InputError
    from jaxformer.storage.manifest import describe, verify
    from jaxformer.storage.retention import refused_folders
    from jaxformer.storage.steps import average_names, step_folders
    from jaxformer.storage.workdir import Workdir

    directory = Workdir(Path(args.workdir)).checkpoints
    names = [*map(str, step_folders(directory)), *average_names(directory)]
    if not names:
        raise InputError(f"{directory} holds no checkpoint")
    damaged = 0
    for name in names:
        if args.accept and is_whole_without_manifest(directory, name):
            print(f"{name}: accepted as it is, {accept(directory / name):,} bytes")
            continue
        problems = verify(directory / name)
        damaged += bool(problems)
        state = f"DAMAGED: {describe(problems)}" if problems else describe_good(directory / name)
        print(f"{name}: {state}")
    for folder in refused_folders(directory):
        print(f"{folder.name}: set aside as damaged by a run; you may delete it")
    if damaged:
        raise InputError(f"{damaged} of {len(names)} checkpoints in {directory} are damaged")
    return 0


def is_whole_without_manifest(directory: Path, name: str) -> bool:
    """Whether a folder is a complete checkpoint of a version that wrote no manifests."""
    from jaxformer.storage.manifest import MANIFEST
    from jaxformer.storage.retention import saving_mark
    from jaxformer.storage.steps import is_file

    last = "_CHECKPOINT_METADATA" if name.isdecimal() else "steps.txt"
    whole = is_file(directory / name / last) and not is_file(saving_mark(directory, name))
    return whole and not is_file(directory / name / MANIFEST)


def accept(folder: Path) -> int:
    """Write the manifest of a checkpoint as it is; returns the checkpoint's bytes.

    Raises:
      InputError: the folder cannot be read or written.
    """
    from jaxformer.errors import InputError
    from jaxformer.storage.file_trees import reason
    from jaxformer.storage.manifest import write_manifest

    try:
        return write_manifest(folder)
    except OSError as error:
        raise InputError(f"{folder}: its manifest cannot be written: {reason(error)}") from error


def describe_good(folder: Path) -> str:
    """The size of a checkpoint, and the files in its folder that do not belong to it."""
    from jaxformer.storage.manifest import describe, read_manifest, stray_files

    size = sum(record.size for record in read_manifest(folder).values())
    strays = stray_files(folder)
    return f"good, {size:,} bytes" + (f"; stray files: {describe(strays)}" if strays else "")
