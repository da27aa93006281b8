"""`python -m jaxformer evaluate`: loss, BLEU and chrF on a split of the run or on two files."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jaxformer.commands.decoding_arguments import (
    add_decoding_arguments,
    decoding_config,
    mesh_config,
)
from jaxformer.commands.file_names import InputName, OutputName
from jaxformer.errors import InputError
from jaxformer.files.inputs import require_shared
from jaxformer.files.outputs import check_output, open_output
from jaxformer.runtime.launch import launch_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_decoding_arguments(parser)
    parser.add_argument("--split", help="test (default), validation, train or compositional")
    parser.add_argument(
        "--source", type=InputName, help="file of source sentences, instead of --split"
    )
    parser.add_argument(
        "--reference", type=InputName, help="file of reference translations of --source"
    )
    parser.add_argument(
        "--tokenize", help="sacreBLEU tokenizer: 13a, none, ... (default: the run's)"
    )
    parser.add_argument(
        "--lowercase", action="store_true", default=None, help="score without regard to case"
    )
    parser.add_argument("--output", type=OutputName, help="file for the translations")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    from jaxformer.evaluation.bleu import make_bleu
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.runtime.distributed import is_first_process, job, several_processes
    from jaxformer.storage.checkpoint import resolve_checkpoint
    from jaxformer.storage.workdir import Workdir

    named = [args.source is not None, args.reference is not None]
    if any(named) and (not all(named) or args.split is not None):
        raise InputError("give either --split, or both --source and --reference")
    workdir = Workdir(Path(args.workdir))
    config = workdir.load_config()
    if args.tokenize is not None:
        make_bleu(args.tokenize, name="--tokenize")
    else:
        make_bleu(config.training.bleu_tokenize, name="training.bleu_tokenize")
    folder = resolve_checkpoint(workdir.checkpoints, args.checkpoint, config.training.best_metric)
    source, split = open_source(args, config)
    configure_backend()
    with job(launch_of(args)):
        if args.output is not None and is_first_process():
            check_output(args.output)
        if several_processes():
            for flag in ("source", "reference"):
                if getattr(args, flag) is not None:
                    require_shared(getattr(args, flag), f"--{flag}")
        result = measure(args, config, workdir, folder, source, split)
        if not is_first_process():
            return 0
        sys.stdout.write(format_json(result) if args.format == "json" else format_text(result))
        if args.output is not None:
            with open_output(args.output) as file:
                file.writelines(f"{text}\n" for text in result.hypotheses)
    return 0


def measure(args: argparse.Namespace, config, workdir, folder: Path, source, split: str):
    """The `Evaluation` of the checkpoint in `folder`, on all devices of the job."""
    from jaxformer.data.tokenizers import load_tokenizers
    from jaxformer.decoding.translator import abstract_params
    from jaxformer.evaluation.evaluate import Evaluator
    from jaxformer.parallel.mesh import make_mesh
    from jaxformer.parallel.sharding import place_like_parameters
    from jaxformer.storage.checkpoint import load_params
    from jaxformer.storage.identity import check_checkpoint
    from jaxformer.tasks.translation import Translation

    mesh = make_mesh(mesh_config(args))
    tokenizers = load_tokenizers(workdir.path)
    check_checkpoint(folder, config, tokenizers)
    task = Translation(config.model, pad_id=tokenizers[0].pad_id, bos_id=tokenizers[1].bos_id)
    abstract = place_like_parameters(abstract_params(task.model), mesh)
    evaluator = Evaluator(config, task, tokenizers, mesh, abstract)
    return evaluator.measure(
        load_params(folder, abstract),
        evaluator.load(source, split),
        decoding_config(args, config.decoding),
        tokenize=args.tokenize,
        lowercase=args.lowercase,
        description=f"translating {split}",
    )


def open_source(args: argparse.Namespace, config):
    """The source that holds the sentences, and their split in it."""
    from jaxformer.data.sources import make_source
    from jaxformer.data.text_files import FilePair

    if args.source is not None:
        return FilePair(args.source, args.reference), "test"
    source = make_source(config.data, config.seed)
    split = "test" if args.split is None else args.split
    if split not in source.splits:
        raise InputError(
            f"--split={split} is not in the data; there are: {', '.join(source.splits)}"
        )
    return source, split


def format_text(result) -> str:
    scores = result.scores
    return (
        f"BLEU        {scores.bleu:.2f}   {scores.bleu_signature}\n"
        f"chrF        {scores.chrf:.2f}   {scores.chrf_signature}\n"
        f"loss        {result.loss:.4f} nats a target token, label-smoothed as in training\n"
        f"perplexity  {result.perplexity:.3f}\n"
        f"accuracy    {result.accuracy:.2%}\n"
        f"speed       {result.sentences / result.seconds:.1f} sentences/s "
        f"({result.sentences:,} sentences, {result.seconds:.1f} s, compilation included)\n"
    )


def format_json(result) -> str:
    figures = result.metrics() | {
        "bleu_signature": result.scores.bleu_signature,
        "chrf_signature": result.scores.chrf_signature,
        "sentences": result.sentences,
        "seconds": result.seconds,
        "sentences_per_second": result.sentences / result.seconds,
    }
    return json.dumps(figures, indent=2) + "\n"
