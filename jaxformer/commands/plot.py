"""`python -m jaxformer plot`: pictures of the paper's parts and of training curves, PNG or SVG."""

from __future__ import annotations

import argparse

from jaxformer.commands.file_names import OutputName
from jaxformer.config_sections import SCHEDULE_ALIASES, SCHEDULE_NAMES
from jaxformer.errors import InputError

PAIRS = ("why ? = pourquoi ?", "the cat is black = le chat est noir")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="picture", required=True, metavar="picture")

    def picture(name: str, summary: str) -> argparse.ArgumentParser:
        added = kinds.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        added.add_argument(
            "--output", type=OutputName, required=True, help="file to write, FILE.png or FILE.svg"
        )
        return added

    positions = picture("positions", "the sinusoidal positions of the paper, as a heat map")
    positions.add_argument("--length", type=int, default=100, help="positions (default: 100)")
    positions.add_argument("--d_model", type=int, default=128, help="columns (default: 128)")
    schedule = picture("schedule", "learning rates over a run, for each width and warm-up")
    schedule.add_argument(
        "--schedule",
        choices=(*SCHEDULE_NAMES, *SCHEDULE_ALIASES),
        default="paper",
        help="paper and noam are the same (default: paper)",
    )
    schedule.add_argument(
        "--d_model", help="widths, comma-separated, for paper only (default: 256,512)"
    )
    schedule.add_argument(
        "--warmup_steps", default="4000,8000", help="updates, comma-separated (default: 4000,8000)"
    )
    schedule.add_argument(
        "--learning_rate", type=float, help="peak (default: 1e-3); for paper a factor (default: 1)"
    )
    schedule.add_argument("--num_steps", type=int, default=20_000, help="updates (default: 20000)")
    smoothing = picture("label-smoothing", "the effect of label smoothing on a target and the loss")
    smoothing.add_argument(
        "--label_smoothing", default="0.1", help="eps, comma-separated (default: 0.1)"
    )
    smoothing.add_argument("--vocab_size", type=int, default=8, help="pieces (default: 8)")
    masks = picture("masks", "which tokens may attend to which: padding, causal and packed masks")
    masks.add_argument(
        "--pair", action="append", metavar="'SOURCE = TARGET'",
        help="words separated by spaces; repeat for each pair (default: two short sentences)",
    )  # fmt: skip
    curves = picture("curves", "loss, BLEU, learning rate and speed of each --workdir")
    curves.add_argument(
        "--workdir", required=True, action="append", help="folder of a run; repeat for more runs"
    )


def run(args: argparse.Namespace) -> int:
    from jaxformer.visualization.figures import check_picture_path, load_matplotlib, write_figure

    check_picture_path(args.output)
    load_matplotlib()
    path = write_figure(DRAW[args.picture](args), args.output, "--output")
    print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


def draw_positions(args: argparse.Namespace):
    from jaxformer.visualization.plots import positions_figure

    return positions_figure(args.length, args.d_model)


def draw_schedule(args: argparse.Namespace):
    """One curve for each width and warm-up; only the paper's schedule depends on the width."""
    from jaxformer.config import OptimizerConfig
    from jaxformer.training.optimizer import make_schedule
    from jaxformer.visualization.plots import schedule_figure

    paper = SCHEDULE_ALIASES.get(args.schedule, args.schedule) == "paper"
    if args.d_model is not None and not paper:
        raise InputError(
            f"--d_model={args.d_model} does not affect --schedule={args.schedule}; leave it out, "
            "or use --schedule=paper"
        )
    rate = args.learning_rate if args.learning_rate is not None else (1.0 if paper else 1e-3)
    widths = numbers("--d_model", args.d_model or "256,512", int, 1) if paper else [1]
    schedules = {}
    for width in widths:
        for warmup in numbers("--warmup_steps", args.warmup_steps, int, 0):
            config = OptimizerConfig(
                schedule=args.schedule, learning_rate=rate, warmup_steps=warmup
            )
            name = f"warm-up {warmup:,}"
            name = f"d_model {width:,}, {name}" if paper else name
            schedules[name] = make_schedule(config, d_model=width, num_steps=args.num_steps)
    return schedule_figure(schedules, args.num_steps, f"Learning rate, schedule = {args.schedule}")


def draw_label_smoothing(args: argparse.Namespace):
    from jaxformer.visualization.plots import label_smoothing_figure

    rates = numbers("--label_smoothing", args.label_smoothing, float, 0.0)
    return label_smoothing_figure(rates, args.vocab_size)


def draw_masks(args: argparse.Namespace):
    from jaxformer.visualization.mask_figure import masks_figure

    pairs = []
    for text in args.pair or PAIRS:
        source, equals, target = text.partition("=")
        if not equals or not source.strip() or not target.strip():
            raise InputError(f"--pair={text!r}: write it as 'the cat = le chat'")
        pairs.append((source.split(), target.split()))
    return masks_figure(pairs)


def draw_curves(args: argparse.Namespace):
    from jaxformer.visualization.curves import curves_figure

    return curves_figure(args.workdir)


DRAW = {
    "positions": draw_positions,
    "schedule": draw_schedule,
    "label-smoothing": draw_label_smoothing,
    "masks": draw_masks,
    "curves": draw_curves,
}


def numbers(flag: str, text: str, kind: type, low: float) -> list:
    """Parse a comma-separated flag; duplicates are dropped.

    Args:
      flag: its name, for messages.
      text: its value.
      kind: `int` or `float`.
      low: smallest number allowed.

    Returns:
      The numbers, in order.

    Raises:
      InputError: one is not a number or is too low.
    """
    found = []
    for part in text.split(","):
        try:
            value = kind(part.strip().replace("_", ""))
        except ValueError:
            example = "256,512" if kind is int else "0.1,0.3"
            raise InputError(f"{flag}={text}: {part!r} is not a number; write {example}") from None
        if not value >= low:
            raise InputError(f"{flag}={text}: {value:g} must be at least {low:g}")
        found.append(value)
    return list(dict.fromkeys(found))
