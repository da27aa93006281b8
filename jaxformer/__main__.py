"""`python -m jaxformer <command>`: parse the command's flags, run it, exit with its status."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from jaxformer.errors import InputError

COMMANDS = {
    "translate": "translate a file, standard input, or what is typed at a prompt",
    "evaluate": "measure loss, BLEU and chrF of a checkpoint",
    "average": "average the last or the best checkpoints into one",
    "verify": "check every file of the checkpoints of a run",
    "plan": "memory, work and messages of a train step on a pod that is not there yet",
    "visualize": "one HTML page that shows translations from the inside",
    "plot": "pictures: positions, schedule, label-smoothing, masks, curves",
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Returns:
      Exit status: 0, or 2 for bad input, 130 after Ctrl-C, 141 when the reader of a pipe went away.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m jaxformer", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        if name == chosen:  # only the command that runs is imported
            module = importlib.import_module(f"jaxformer.commands.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    parsed = parser.parse_args(arguments)
    try:
        status = parsed.run(parsed)
        sys.stdout.flush()
        return status
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Python flushes once more at its end and must not meet the broken pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


if __name__ == "__main__":
    sys.exit(main())
