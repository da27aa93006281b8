"""`python -m jaxformer average`: average the last or the best checkpoints into one."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of the run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="average the N newest checkpoints")
    which.add_argument("--best", type=int, metavar="N", help="average the N best checkpoints")


def run(args: argparse.Namespace) -> int:
    from jaxformer.storage.average import average_checkpoints
    from jaxformer.tasks.open_run import StoredRun
    from jaxformer.tasks.registry import ranking_of

    stored = StoredRun.of(args.workdir)
    checkpoints = stored.workdir.checkpoints
    name, steps = average_checkpoints(
        checkpoints,
        stored.shapes(),
        count=args.last if args.last is not None else args.best,
        choose="last" if args.last is not None else "best",
        ranking=ranking_of(stored.config),
        check=stored.check,
    )
    print(f"averaged steps {', '.join(map(str, steps))} into {checkpoints / name}")
    print(f"next  python -m jaxformer evaluate --workdir={args.workdir} --checkpoint={name}")
    return 0
