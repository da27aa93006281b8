"""How the tests call each command, and which of its flags name files.

The flags are found in the parsers themselves: a command that is registered is in every table, and
one without an example here fails them.
"""

import argparse

from jaxformer.__main__ import COMMANDS, make_parser
from jaxformer.commands.file_names import InputName, OutputName

# A call of each command that succeeds. {workdir} is a trained run, {lines} and {references} files.
EXAMPLES = {
    "translate": ["--workdir={workdir}", "--input={lines}", "--greedy"],
    "evaluate": [
        "--workdir={workdir}", "--source={lines}", "--reference={references}", "--greedy",
        "--format=json",
    ],
    "average": ["--workdir={workdir}", "--last=1"],
    "verify": ["--workdir={workdir}"],
    "plan": ["--config={config}", "--devices=1"],
    "visualize": ["--workdir={workdir}", "--input={lines}", "--output={folder}/example.html",
                  "--greedy"],
    "plot positions": ["--length=4", "--d_model=4", "--output={folder}/example.png"],
    "plot schedule": ["--num_steps=9", "--output={folder}/example.png"],
    "plot label-smoothing": ["--output={folder}/example.png"],
    "plot masks": ["--output={folder}/example.svg"],
    "plot curves": ["--workdir={workdir}", "--output={folder}/example.svg"],
}  # fmt: skip


def parsers(name):
    """The parser of a command, or those of its parts, by name: `plot positions`."""
    found = subparsers(make_parser([name]))[name]
    parts = subparsers(found)
    return {f"{name} {part}": parser for part, parser in parts.items()} or {name: found}


def subparsers(parser):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action.choices
    return {}


def flags_of_type(kind):
    """(command, flag) of every flag of a type, `OutputName` say, in all commands."""
    return [
        (command, action.option_strings[0])
        for name in COMMANDS
        for command, parser in parsers(name).items()
        for action in parser._actions
        if action.type is kind
    ]


def commands_with(flag):
    """The commands that have a flag of this name."""
    return [
        command
        for name in COMMANDS
        for command, parser in parsers(name).items()
        if any(flag in action.option_strings for action in parser._actions)
    ]


OUTPUTS, INPUTS = flags_of_type(OutputName), flags_of_type(InputName)
WITH_WORKDIR = commands_with("--workdir")


def arguments(command, places, **replaced):
    """The example of a command for `main`, with other values of some flags: `input="x.txt"`."""
    words = [*command.split(), *(flag.format(**places) for flag in EXAMPLES[command])]
    for name, value in replaced.items():
        words = [word for word in words if word.partition("=")[0] != f"--{name}"]
        words.append(f"--{name}={value}")
    return words
