"""`python -m jaxformer average`: one checkpoint out of the last or the best ones."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of the run")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="average the N newest checkpoints")
    which.add_argument("--best", type=int, metavar="N", help="average the N best checkpoints")


def run(args: argparse.Namespace) -> int:
    from jaxformer.data.tokenizers import load_tokenizers
    from jaxformer.decoding.translator import abstract_params
    from jaxformer.models.transformer import Transformer
    from jaxformer.storage.average import average_checkpoints
    from jaxformer.storage.identity import check_checkpoint
    from jaxformer.storage.workdir import Workdir

    workdir = Workdir(Path(args.workdir))
    config = workdir.load_config()
    tokenizers = load_tokenizers(workdir.path)
    name, steps = average_checkpoints(
        workdir.checkpoints,
        abstract_params(Transformer(config.model)),
        count=args.last if args.last is not None else args.best,
        choose="last" if args.last is not None else "best",
        best_metric=config.training.best_metric,
        check=lambda folder: check_checkpoint(folder, config, tokenizers),
    )
    print(f"averaged steps {', '.join(map(str, steps))} into {workdir.checkpoints / name}")
    print(f"next  python -m jaxformer evaluate --workdir={args.workdir} --checkpoint={name}")
    return 0
