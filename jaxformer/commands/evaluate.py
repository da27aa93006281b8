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
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.runtime.distributed import is_first_process, job, several_processes
    from jaxformer.tasks.open_run import StoredRun

    named = [args.source is not None, args.reference is not None]
    if any(named) and (not all(named) or args.split is not None):
        raise InputError("give either --split, or both --source and --reference")
    stored = StoredRun.of(args.workdir)
    translates = stored.config.task == "translation"
    check_flags(args, stored.config, translates)
    folder = stored.checkpoint(args.checkpoint)
    source, split = open_source(args, stored.config) if translates else (None, args.split or "test")
    configure_backend()
    with job(launch_of(args)):
        if args.output is not None and is_first_process():
            check_output(args.output)
        if several_processes():
            for flag in ("source", "reference"):
                if getattr(args, flag) is not None:
                    require_shared(getattr(args, flag), f"--{flag}")
        if translates:
            result = measure(args, stored, folder, source, split)
        else:
            result = measure_split(args, stored, folder, split)
        if not is_first_process():
            return 0
        show = format_json if args.format == "json" else format_text
        sys.stdout.write(show(result) if translates else format_metrics(result, args.format))
        if args.output is not None:
            with open_output(args.output) as file:
                file.writelines(f"{text}\n" for text in result.hypotheses)
    return 0


def check_flags(args: argparse.Namespace, config, translates: bool) -> None:
    """Check the flags against the task of the run.

    Args:
      args: arguments of the command.
      config: configuration of the run.
      translates: whether the task is translation.

    Raises:
      InputError: the task does not have a flag, or the BLEU tokenizer is unknown.
    """
    from jaxformer.evaluation.bleu import make_bleu

    if translates:
        if args.tokenize is not None:
            make_bleu(args.tokenize, name="--tokenize")
        else:
            make_bleu(config.training.bleu_tokenize, name="training.bleu_tokenize")
        return
    for flag in ("source", "reference", "tokenize", "lowercase", "output"):
        if getattr(args, flag) is not None:
            raise InputError(f"--{flag} is for translation; the run has task={config.task!r}")


def measure(args: argparse.Namespace, stored, folder: Path, source, split: str):
    """The evaluation of the checkpoint in `folder`, on all devices of the job.

    Args:
      args: arguments of the command.
      stored: the `StoredRun` of a translation.
      folder: folder of a checkpoint.
      source: source of the text.
      split: split of the source.
    """
    from jaxformer.parallel.mesh import make_mesh

    mesh, config = make_mesh(mesh_config(args)), stored.config
    params = stored.load(folder, mesh)
    evaluator = stored.task.evaluator(
        config, stored.objective, None, stored.vocabularies, mesh, params
    )
    return evaluator.translate_and_score(
        params,
        evaluator.load_from(source, split),
        decoding_config(args, config.decoding),
        tokenize=args.tokenize,
        lowercase=args.lowercase,
        description=f"translating {split}",
    )


def measure_split(args: argparse.Namespace, stored, folder: Path, split: str):
    """The evaluation on a split of the run's own data, of any task.

    Args:
      args: arguments of the command.
      stored: the `StoredRun`.
      folder: folder of a checkpoint.
      split: split of the run's data.
    """
    from jaxformer.parallel.mesh import make_mesh

    mesh, config = make_mesh(mesh_config(args)), stored.config
    params, data = stored.load(folder, mesh), stored.task.open_data(config)
    evaluator = stored.task.evaluator(
        config, stored.objective, data, stored.vocabularies, mesh, params
    )
    return evaluator.measure(params, evaluator.load(split), final=True)


def format_metrics(result, format_name: str) -> str:
    """The metrics of any task, one per line or as JSON."""
    figures = result.metrics() | result.notes()
    if format_name == "json":
        return json.dumps(figures, indent=2) + "\n"
    return "".join(f"{name:<11} {value}\n" for name, value in figures.items())


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
