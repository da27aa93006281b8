"""`python -m jaxformer <command>`: parse the command's flags, run it, exit with its status."""

from __future__ import annotations

import argparse
import importlib
import sys

from jaxformer.commands.empty_values import refuse_empty
from jaxformer.files.outcome import exit_status
from jaxformer.files.streams import result_streams

COMMANDS = {
    "translate": "translate a file, standard input, or what is typed at a prompt",
    "evaluate": "measure loss, BLEU and chrF of a checkpoint",
    "average": "average the last or the best checkpoints into one",
    "verify": "check every file of the checkpoints of a run",
    "plan": "memory, work and messages of training or translating on devices not there yet",
    "visualize": "one HTML page that shows translations from the inside",
    "plot": "pictures: positions, schedule, label-smoothing, masks, curves",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
      Exit status: 0, or one of `exit_status`.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with result_streams():
        return exit_status(lambda: run_command(arguments))


def run_command(arguments: list[str]) -> int:
    """Parse the arguments, and call the command that they name.

    Raises:
      InputError: a flag was given an empty value.
      SystemExit: argparse refused the arguments, or was asked for help.
    """
    refuse_empty(arguments)
    parsed = make_parser(arguments).parse_args(arguments)
    status = parsed.run(parsed)
    sys.stdout.flush()
    return status


def make_parser(arguments: list[str]) -> argparse.ArgumentParser:
    """The parser of a command line: with the flags of the command that it names, and no others."""
    parser = argparse.ArgumentParser(prog="python -m jaxformer", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:  # only the command that runs is imported
            module = importlib.import_module(f"jaxformer.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
