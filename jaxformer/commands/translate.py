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
    decoding_config,
    mesh_config,
)
from jaxformer.commands.file_names import InputName, OutputName
from jaxformer.errors import InputError
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
    add_decoding_arguments(parser)
    parser.add_argument(
        "--input", type=InputName, help="file of sentences, one a line (default: standard input)"
    )
    parser.add_argument(
        "--output", type=OutputName, help="file to write (default: standard output)"
    )
    parser.add_argument(
        "--top_beams", type=int, default=1, help="translations of each sentence, best first"
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
    if not 1 <= args.top_beams <= decoding.beam_size:
        raise InputError(
            f"--top_beams={args.top_beams} of {decoding.beam_size} beams; use 1 to "
            f"{decoding.beam_size}, or a larger --beam_size"
        )
    total = None
    if args.input is not None:
        require_readable(args.input)  # says at once if there is no such file
        total = count_lines(args.input) if is_regular(args.input) else None
    configure_backend()
    with distributed.job(launch_of(args)):
        first = distributed.is_first_process()
        if first and args.output is not None:
            check_output(args.output)
        if distributed.several_processes():
            require_shared(args.input, "--input")
        translator = Translator.from_workdir(
            args.workdir,
            checkpoint=args.checkpoint,
            decoding=decoding,
            mesh=make_mesh(mesh_config(args)),
        )
        terminal = sys.stdin is not None and sys.stdin.isatty()
        if args.input is None and args.output is None and terminal:
            return prompt(translator, args)
        lines = read_lines(args.input) if args.input is not None else standard_input()
        with open_output(args.output) if first else open(os.devnull, "w") as output:
            translate_lines(translator, lines, output, args, total)
    return 0


def translate_lines(translator, lines: Iterator[str], output: TextIO, args, total: int | None):
    """Translate a stream chunk by chunk, in order, with a progress bar for files."""
    from tqdm import tqdm

    from jaxformer.runtime.distributed import is_first_process

    quiet = total is None or not (sys.stderr.isatty() and is_first_process())
    with tqdm(total=total, desc="translating", unit="line", disable=quiet) as bar:
        first = 1
        while chunk := list(itertools.islice(lines, CHUNK_LINES)):
            results = translator.translate(chunk, progress=bar.update, first_line=first)
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


def prompt(translator, args) -> int:
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
        sys.stdout.writelines(format_result(number, line, translator.translate([line])[0], args))
        sys.stdout.flush()
    return 0
