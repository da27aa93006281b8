"""Train a Transformer: python train.py [--config=FILE] [--workdir=DIR] [--config.field=value].

With no flags it trains on the built-in English-French corpus in runs/pocket. The same command
again resumes from the last checkpoint.

Exit status: 0 done, or training.max_seconds reached; 1 diverged, or an error of jaxformer; 2 bad
input, a workdir in use or lost, or an error of the operating system; 70 no sign of life (stacks in
WORKDIR/stacks.txt); 71 another process of the job was lost; 130 after SIGINT and 143 after SIGTERM
and SIGUSR1, saved. After 70, 71, 130, 143 and a kill the same command resumes.
"""

import dataclasses
import sys
from pathlib import Path

from absl import app, flags, logging
from ml_collections import config_flags

from jaxformer.config import Config
from jaxformer.errors import InputError
from jaxformer.files.outcome import exit_status
from jaxformer.files.streams import log_streams
from jaxformer.runtime.launch import FLAGS, launch_of

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pocket.py"
_CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,  # parse_flags sets the default: absl would read one given here before any check
    "File whose get_config() describes the run; default: configs/pocket.py.",
    lock_config=True,
)
_WORKDIR = flags.DEFINE_string("workdir", "", "Folder of the run; runs/<config name> if empty.")
_ALLOW_CHANGES = flags.DEFINE_list(
    "allow_changes",
    [],
    "Comma-separated fields and sections that may differ from the run in the workdir even though "
    "that alters its training; e.g. optimizer.learning_rate,data",
)
_PROFILE = flags.DEFINE_bool(
    "profile", False, "Trace five steps of this start, like --config.training.profile_steps=5."
)
_DEFINE = {str: flags.DEFINE_string, int: flags.DEFINE_integer, float: flags.DEFINE_float}
for _name, (_kind, _default, _help) in FLAGS.items():
    _DEFINE[_kind](_name, _default, _help)


def parse_flags(arguments: list[str]) -> list[str]:
    """Parse the command line; an error in it prints one line and exits with status 2."""
    from jaxformer.commands.config_files import require_config
    from jaxformer.commands.config_overrides import check_arguments
    from jaxformer.commands.empty_values import refuse_empty

    name = str(DEFAULT_CONFIG)
    try:
        refuse_empty(arguments[1:])
        given = check_arguments(arguments[1:])
        name = given or name
        default = [] if given else [f"--config={name}"]
        rest = flags.FLAGS([arguments[0], *default, *arguments[1:]])
        require_config(name, _CONFIG.value)
        return rest
    except Exception as error:  # a config file may raise anything, and absl wraps some of it
        print(f"error: {describe(error, name)}", file=sys.stderr)
        sys.exit(2)


def describe(error: Exception, config_file: str) -> str:
    """The message of an error of the command line, or of the config file that it names."""
    from jaxformer.commands.config_files import config_file_error, raised_in

    if isinstance(error, InputError) or (
        isinstance(error, flags.Error) and not raised_in(config_file, error)
    ):
        return str(error)
    return str(config_file_error(config_file, error))


def main(_: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    with log_streams():
        return exit_status(run, diverged=1)


def run() -> int:
    """Train as the flags specify; returns the exit status."""
    from jaxformer.runtime import distributed
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.training.loop import train

    config = Config.from_dict(_CONFIG.value.to_dict())
    if _PROFILE.value and not config.training.profile_steps:
        training = dataclasses.replace(config.training, profile_steps=5)
        config = dataclasses.replace(config, training=training)
    configure_backend()
    name = Path(config_flags.get_config_filename(flags.FLAGS["config"])).stem
    workdir = _WORKDIR.value or Path("runs") / name
    with distributed.job(launch_of(flags.FLAGS)):
        distributed.require_same("configuration", config.to_json())
        return train(config, workdir, allow_changes=_ALLOW_CHANGES.value).exit_status


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
