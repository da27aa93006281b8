"""`python -m jaxformer translate`: a file, standard input, or a prompt."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from jaxformer.commands.decoding_arguments import (
    add_decoding_arguments,
    add_sampling_arguments,
    decoding_config,
    mesh_config,
    sampling_strategy,
)
from jaxformer.commands.file_names import InputName, OutputName
from jaxformer.errors import InputError, check_range
from jaxformer.files.descriptors import is_regular
from jaxformer.files.inputs import (
    count_lines,
    read_lines,
    require_readable,
    require_shared,
    standard_input,
)
from jaxformer.files.outputs import check_output, open_output
from jaxformer.runtime.launch import launch_of

CHUNK_LINES = 4096  # read, translated and written at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling_arguments(parser, add_decoding_arguments(parser))
    parser.add_argument(
        "--input", type=InputName, help="file of sentences, one a line (default: standard input)"
    )
    parser.add_argument(
        "--output", type=OutputName, help="file to write (default: standard output)"
    )
    parser.add_argument(
        "--prefix_file",
        type=InputName,
        help="file of the words that each translation begins with, one line for each of --input; "
        "an empty line: none",
    )
    parser.add_argument(
        "--top_beams",
        type=int,
        default=1,
        help="translations of each sentence, best first; with --sample, as drawn",
    )
    parser.add_argument(
        "--format",
        choices=("text", "jsonl"),
        default="text",
        help="text: the translation; with --top_beams > 1: line number, score, translation, by "
        "tabs. jsonl: one object a sentence, with scores",
    )


def run(args: argparse.Namespace) -> int:
    from jaxformer.decoding.translator import Translator
    from jaxformer.parallel.mesh import make_mesh
    from jaxformer.runtime import distributed
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.storage.workdir import Workdir

    configured = Workdir(Path(args.workdir)).load_config().decoding
    decoding = decoding_config(args, configured)
    if args.sample:
        check_range("--top_beams", args.top_beams, 1)
    elif not 1 <= args.top_beams <= decoding.beam_size:
        raise InputError(
            f"--top_beams={args.top_beams} of {decoding.beam_size} beams; use 1 to "
            f"{decoding.beam_size}, or a larger --beam_size"
        )
    strategy = sampling_strategy(args, args.top_beams)
    total = count_input(args)
    configure_backend()
    with distributed.job(launch_of(args)):
        first = distributed.is_first_process()
        if first and args.output is not None:
            check_output(args.output)
        if distributed.several_processes():
            require_shared(args.input, "--input")
            if args.prefix_file is not None:
                require_shared(args.prefix_file, "--prefix_file")
        translator = Translator.from_workdir(
            args.workdir,
            checkpoint=args.checkpoint,
            decoding=decoding,
            mesh=make_mesh(mesh_config(args)),
        )
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if args.input is None and args.output is None and terminal:
            if args.prefix_file is not None:
                raise InputError("--prefix_file needs the sentences in a file; give --input too")
            return prompt(translator, args, strategy)
        lines = read_lines(args.input) if args.input is not None else standard_input()
        with open_output(args.output) if first else open(os.devnull, "w") as output:
            translate_lines(translator, lines, output, args, total, strategy)
    return 0


def count_input(args: argparse.Namespace) -> int | None:
    """Lines of `--input`, None if they cannot be known before they are read.

    Raises:
      InputError: a file cannot be read, or `--prefix_file` has more or fewer lines.
    """
    counts: dict[str, int | None] = {}
    for flag in ("input", "prefix_file"):
        path = getattr(args, flag)
        if path is not None:
            require_readable(path)  # says at once if there is no such file
        counts[flag] = count_lines(path) if path is not None and is_regular(path) else None
    if None not in counts.values():
        check_counts(args, *counts.values())
    return counts["input"]


def check_counts(args: argparse.Namespace, lines: int, prefixes: int) -> None:
    """Raise `InputError` unless there is a prefix for each line."""
    if lines != prefixes:
        raise InputError(
            f"--prefix_file={args.prefix_file} has {prefixes:,} lines and the input has {lines:,}; "
            "give one for each, empty where there is no prefix"
        )


def read_chunks(lines: Iterator[str], args) -> Iterator[tuple[list[str], list[str] | None]]:
    """The lines of the input and of `--prefix_file`, chunk by chunk.

    Raises:
      InputError: one of the two ends before the other.
    """
    if args.prefix_file is None:
        while chunk := list(itertools.islice(lines, CHUNK_LINES)):
            yield chunk, None
        return
    prefixes, done = read_lines(args.prefix_file), 0
    while True:
        chunk = list(itertools.islice(lines, CHUNK_LINES))
        beside = list(itertools.islice(prefixes, CHUNK_LINES))
        if len(chunk) != len(beside):
            more = [done + len(read) + sum(1 for _ in rest)
                    for read, rest in ((chunk, lines), (beside, prefixes))]  # fmt: skip
            check_counts(args, *more)
        if not chunk:
            return
        yield chunk, beside
        done += len(chunk)


def translate_lines(
    translator, lines: Iterator[str], output: TextIO, args, total: int | None, strategy=None
):
    """Translate a stream chunk by chunk, in order, with a progress bar for files."""
    from tqdm import tqdm

    from jaxformer.runtime.distributed import is_first_process

    quiet = total is None or not (sys.stderr.isatty() and is_first_process())
    with tqdm(total=total, desc="translating", unit="line", disable=quiet) as bar:
        first = 1
        for chunk, prefixes in read_chunks(lines, args):
            results = translator.translate(
                chunk,
                prefixes,
                strategy=strategy,
                seed=args.seed or 0,
                progress=bar.update,
                first_line=first,
            )
            for number, (line, hypotheses) in enumerate(zip(chunk, results, strict=True), first):
                output.writelines(format_result(number, line, hypotheses, args))
            output.flush()
            first += len(chunk)


def format_result(number: int, line: str, hypotheses, args) -> Iterable[str]:
    """The output lines of one sentence."""
    shown = hypotheses[: args.top_beams]
    if args.format == "jsonl":
        yield (
            json.dumps(
                {
                    "line": number,
                    "source": line,
                    "translations": [
                        {
                            "text": h.text,
                            "score": h.score,
                            "log_prob": h.log_prob,
                            "tokens": h.num_tokens,
                            "truncated": h.truncated,
                        }
                        for h in shown
                    ],
                },
                ensure_ascii=False,
            )
            + "\n"
        )
    elif args.top_beams == 1:
        yield shown[0].text + "\n"
    else:
        for hypothesis in shown:
            yield f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}\n"


def prompt(translator, args, strategy=None) -> int:
    """Translate what is typed, line by line, until Ctrl-D."""
    import readline  # noqa: F401 - gives input() history and editing

    print("Type a sentence and press Enter; Ctrl-D ends.", file=sys.stderr)
    for number in itertools.count(1):
        try:
            line = input("> ")
            line.encode()  # in the C locale Python lets any byte through
        except EOFError:
            print(file=sys.stderr)
            return 0
        except UnicodeError as error:
            print(f"line {number} is not UTF-8 ({error.reason}); type it again", file=sys.stderr)
            continue
        (hypotheses,) = translator.translate(
            [line], strategy=strategy, seed=args.seed or 0, first_line=number
        )
        sys.stdout.writelines(format_result(number, line, hypotheses, args))
        sys.stdout.flush()
    return 0
