"""`python -m jaxformer visualize`: an HTML page that shows translations from the inside."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from jaxformer.commands.decoding_arguments import (
    add_decoding_arguments,
    decoding_config,
    mesh_config,
)
from jaxformer.commands.file_names import InputName, OutputName
from jaxformer.errors import InputError
from jaxformer.files.inputs import read_lines
from jaxformer.files.outputs import check_output, open_output
from jaxformer.runtime.launch import launch_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_decoding_arguments(parser)
    parser.add_argument(
        "--text", action="append", default=[], help="a sentence to translate; may be repeated"
    )
    parser.add_argument(
        "--input", type=InputName, help="file of sentences, one a line, instead of --text"
    )
    parser.add_argument(
        "--translation",
        action="append",
        default=[],
        help="reference translation of a --text, to see its training target; one for each --text, "
        "in the same order",
    )
    parser.add_argument("--output", type=OutputName, required=True, help="HTML file to write")
    parser.add_argument(
        "--top_beams",
        type=int,
        help="translations listed per search, best first (default: all beams)",
    )
    parser.add_argument(
        "--layers", help="layers to show, from 0, such as 0,5 (default: all); a smaller page"
    )


def run(args: argparse.Namespace) -> int:
    from jaxformer.decoding.translator import Translator
    from jaxformer.parallel.mesh import make_mesh
    from jaxformer.runtime import distributed
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.tasks.open_run import StoredRun
    from jaxformer.visualization.page import render_page
    from jaxformer.visualization.page_data import page_data

    stored = StoredRun.of(args.workdir)
    config = stored.config
    decoding = decoding_config(args, config.decoding)
    if args.top_beams is not None and not 1 <= args.top_beams <= decoding.beam_size:
        raise InputError(
            f"--top_beams={args.top_beams} of {decoding.beam_size} beams; use 1 to "
            f"{decoding.beam_size}, or a larger --beam_size"
        )
    layers = parse_layers(args.layers)
    texts = sentences(args)
    output = check_output(args.output, "report.html")
    folder = stored.checkpoint(args.checkpoint)
    configure_backend()
    with distributed.job(launch_of(args)):
        if distributed.several_processes():
            raise InputError("visualize runs in one process; start it without a launcher")
        translator = Translator.from_workdir(
            args.workdir,
            checkpoint=folder.name,
            decoding=decoding,
            mesh=make_mesh(mesh_config(args)),
        )
        data = page_data(
            traces(translator, texts, config.training.label_smoothing),
            config,
            (translator.source_tokenizer, translator.target_tokenizer),
            folder.name,
            layers=layers,
            top_beams=args.top_beams,
        )
    page = render_page(data)
    with open_output(args.output) as file:
        file.write(page)
    count, size = len(data["sentences"]), len(page.encode())
    print(f"{output}: {count} sentence{'s' * (count > 1)}, {size / 1000:,.0f} kB")
    return 0


def traces(translator, texts: list[tuple[str, str | None]], label_smoothing: float) -> Iterator:
    """Trace each text, with a progress bar for many.

    Args:
      translator: a `Translator`.
      texts: (text, reference or None).
      label_smoothing: of the run.

    Yields:
      A `SentenceTrace` for each text.
    """
    from tqdm import tqdm

    from jaxformer.visualization.trace import trace_sentence

    quiet = len(texts) < 4 or not sys.stderr.isatty()
    bar = tqdm(texts, desc="tracing", unit="sentence", disable=quiet)
    for number, (text, reference) in enumerate(bar, 1):
        yield trace_sentence(
            translator, text, reference, label_smoothing=label_smoothing, number=number
        )


def sentences(args: argparse.Namespace) -> list[tuple[str, str | None]]:
    """The texts to show, each with its reference translation or None.

    Raises:
      InputError: there is none, one is blank or has several lines, or the flags contradict.
    """
    if bool(args.text) == (args.input is not None):
        raise InputError("give the sentences either as --text, or as a file with --input")
    if args.translation and len(args.translation) != len(args.text):
        raise InputError(
            f"--translation is given {len(args.translation)} times and --text {len(args.text)} "
            "times; give one --translation for each --text, in the same order, or none"
        )
    for flag in ("text", "translation"):
        for number, value in enumerate(getattr(args, flag), 1):
            if not value.strip() or re.search(r"[\r\n]", value):
                raise InputError(
                    f"--{flag}={value!r}, number {number}, must be one line that is not blank"
                )
    if args.input is None:
        return list(zip(args.text, args.translation or [None] * len(args.text), strict=True))
    shown: list[tuple[str, str | None]] = []
    for number, line in enumerate(read_lines(args.input), 1):
        if line.strip():
            shown.append((line, None))
        else:
            print(f"warning: {args.input}, line {number} is blank and not shown", file=sys.stderr)
    if not shown:
        raise InputError(f"--input={args.input} holds no sentence; put one on each line")
    return shown


def parse_layers(text: str | None) -> list[int] | None:
    """Numbers separated by commas; None: all layers."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise InputError(f"--layers={text} is not a list of numbers; write --layers=0,5")
    return [int(number) for number in text.split(",")]
