"""Call train.py and every command in this process, one after the other, and say how each ended.

python call_every_command.py PLACES.json RESULTS.json [what to take away ...]
"""

import json
import os
import pwd
import sys
import traceback
from pathlib import Path


def take_away(what):
    """Make this process live in a poorer world."""
    if what == "passwd":

        def unknown(uid):
            raise KeyError(f"getpwuid(): uid not found: {uid}")

        pwd.getpwuid = unknown
    elif what == "root":
        from root_powers import drop_root_powers

        drop_root_powers()
    elif what in ("stdin", "stdout", "stderr"):
        os.close(("stdin", "stdout", "stderr").index(what))
        setattr(sys, what, None)  # as Python itself finds it at its start


def how_it_ends(call):
    try:
        return call()
    except SystemExit as ended:
        return ended.code
    except BaseException:
        return traceback.format_exc()


def train(places):
    from absl import flags

    sys.argv = ["train.py", f"--config={places['config']}", f"--workdir={places['new_run']}"]
    script = __import__("train")
    status = script.main(script.parse_flags(sys.argv))
    flags.FLAGS.unparse_flags()
    return status


def main(places_file, results_file, *taken):
    for what in taken:
        take_away(what)
    from command_table import EXAMPLES, arguments

    from jaxformer.__main__ import main as run_command

    places = json.loads(Path(places_file).read_text("utf-8"))
    results = {"train.py": how_it_ends(lambda: train(places))}
    for command in EXAMPLES:
        words = arguments(command, places)
        results[command] = how_it_ends(lambda words=words: run_command(words))
    Path(results_file).write_text(json.dumps(results), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
