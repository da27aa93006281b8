"""`python -m jaxformer plan`: what training or translating needs on devices you do not have yet."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any, NamedTuple

from jaxformer.commands.config_files import run_config_file
from jaxformer.commands.config_overrides import parse_value
from jaxformer.commands.file_names import OutputName
from jaxformer.config import Config, field_types
from jaxformer.errors import InputError
from jaxformer.files.outputs import check_output, open_output
from jaxformer.runtime.launch import Launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="file whose get_config() describes the run")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--topology",
        help="absent devices to compile for: a TPU slice such as v5e:16x16 (needs libtpu), GPUs "
        "such as h200:8, or nodes x devices per node such as h200:4x8 (needs JAX's CUDA packages)",
    )
    where.add_argument("--devices", type=int, help="number of devices of the local kind")
    parser.add_argument(
        "--kind", help="with --devices: use the speed of these GPUs, e.g. 'NVIDIA H100 80GB HBM3'"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--decode",
        choices=("greedy", "beam"),
        help="plan translation, not the train step; beams and limits are in --config.decoding",
    )
    what.add_argument(
        "--evaluate",
        action="store_true",
        help="plan the loss of an evaluation during training instead of the train step",
    )
    parser.add_argument(
        "--length",
        type=int,
        help="tokens per row and side; with --decode source tokens (default: data.max_length)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        help="with --decode: sentences over all devices (default: as many as "
        "decoding.tokens_per_batch holds)",
    )
    parser.add_argument(
        "--hlo",
        type=OutputName,
        help="file for the compiled program",
    )
    parser.add_argument(
        "--config.SECTION.FIELD", metavar="VALUE", dest="_", help="any option, as for train.py"
    )
    for name in field_types():
        parser.add_argument(f"--config.{name}", dest=name, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    config = load_config(args)
    check_kind(args)
    check_mode(args, config)
    if args.hlo is not None:
        check_output(args.hlo, "step.hlo", flag="--hlo")
    devices = find_devices(args)
    from jaxformer.planning.step_plan import plan_run
    from jaxformer.runtime.distributed import job

    planned = plan_run(config, devices)
    plan = plan_search if args.decode else plan_loss if args.evaluate else plan_update
    with job(Launch(num_processes=1)):  # handles Ctrl-C during compilation
        table, advice, refused, program = plan(args, planned)
    if args.hlo is not None:
        with open_output(args.hlo, flag="--hlo") as file:
            file.write(program)
    sys.stdout.write(table)
    for line in advice:
        print(f"advice       {line}")
    for line in refused:
        print(f"refused      {line}")
    return 2 if refused else 0


class Outcome(NamedTuple):
    """What `run` prints and saves: the table, advice, reasons to refuse the run, the program."""

    table: str
    advice: list[str]
    refused: list[str]
    program: str


def plan_update(args: argparse.Namespace, run) -> Outcome:
    """Plan the train step."""
    from jaxformer.commands.plan_tables import format_plan
    from jaxformer.parallel.mesh import row_multiple
    from jaxformer.planning.step_plan import advise, plan_step

    config, refused = run.config, []
    budget = run.task.batch_budget(
        config, row_multiple(run.mesh, config.optimizer.accumulation_steps)
    )
    smallest = budget.smallest
    if budget.value < smallest:
        refused.append(
            f"data.tokens_per_batch={config.data.tokens_per_batch} is less than a row of "
            f"data.max_length={config.data.max_length} for each shard of the batch; raise it to "
            f"{smallest} (as planned here) or use fewer devices"
        )
        data = dataclasses.replace(config.data, tokens_per_batch=smallest)
        run = run._replace(config=dataclasses.replace(config, data=data))
    kind = announce(args, run)
    plan = plan_step(run, args.length or config.data.max_length, kind)
    more, advice = advise(run, plan)
    return Outcome(format_plan(run, plan), advice, refused + more, plan.text)


def plan_loss(args: argparse.Namespace, run) -> Outcome:
    """Plan the loss sums of an evaluation during training."""
    from jaxformer.commands.plan_tables import format_plan
    from jaxformer.planning.step_plan import plan_evaluation, refuse_evaluation

    kind = announce(args, run)
    plan = plan_evaluation(run, args.length or run.config.data.max_length, kind)
    return Outcome(format_plan(run, plan), [], refuse_evaluation(run, plan), plan.text)


def plan_search(args: argparse.Namespace, run) -> Outcome:
    """Plan the search for a batch of translations."""
    from jaxformer.commands.plan_tables import format_decoding
    from jaxformer.planning.decoding_plan import plan_decoding, refuse_decoding, search_shape

    config = run.config
    if config.task != "translation":
        raise InputError(f"--decode: task={config.task!r} decodes nothing; leave the flag out")
    length = args.length
    if length is None:
        length = min(config.data.max_length, config.decoding.max_source_length)
    shape = search_shape(run, length, args.batch)
    plan = plan_decoding(run, shape, announce(args, run))
    return Outcome(format_decoding(run, plan), [], refuse_decoding(run, plan), plan.text)


def announce(args: argparse.Namespace, run) -> str:
    """Print the devices to compile for; returns the kind of device whose speed is used."""
    kind = run.mesh.devices.flat[0].device_kind
    print(
        f"compiling for {run.mesh.size} x {kind}; this takes minutes", file=sys.stderr, flush=True
    )
    return args.kind or kind


def load_config(args: argparse.Namespace) -> Config:
    """The configuration of `--config` with the command's `--config.section.field=value` flags."""
    values = run_config_file(args.config)
    for name in field_types():
        text = getattr(args, name)
        if text is not None:
            section, _, field = name.rpartition(".")
            (values[section] if section else values)[field] = parse_value(name, text)
    config = Config.from_dict(values)
    if args.decode == "greedy":
        decoding = dataclasses.replace(config.decoding, beam_size=1)
        config = dataclasses.replace(config, decoding=decoding)
    return config


def check_mode(args: argparse.Namespace, config: Config) -> None:
    """Raise `InputError` for flags that contradict each other, or impossible lengths."""
    if args.batch is not None and args.decode is None:
        raise InputError(
            f"--batch={args.batch} is for --decode; for a train step set "
            "--config.data.tokens_per_batch"
        )
    if args.decode == "beam" and config.decoding.beam_size == 1:
        raise InputError(
            "--decode=beam: decoding.beam_size=1 is greedy; set --config.decoding.beam_size=4, or "
            "--decode=greedy"
        )
    length, longest = args.length, config.data.max_length
    if length is not None and args.decode is None and not 2 <= length <= longest:
        raise InputError(f"--length={length} must be between 2 and data.max_length={longest}")


def check_kind(args: argparse.Namespace) -> None:
    """Raise `InputError` unless `--kind` names GPUs of known speed, for `--devices`."""
    from jaxformer.planning.topology import CHIPS, find_chip

    if args.kind is None:
        return
    chip = find_chip(args.kind)
    if args.topology or chip is None or chip.wraps:
        known = ", ".join(pattern for pattern, chip in CHIPS if not chip.wraps)
        raise InputError(
            f"--kind={args.kind!r}: with --devices it may be one of {known}; name TPUs with "
            "--topology"
        )


def find_devices(args: argparse.Namespace) -> list[Any]:
    """The devices to compile for; starts JAX."""
    from jaxformer.planning.topology import absent_devices, is_tpu, present_devices
    from jaxformer.runtime.xla_flags import add_xla_flags

    if args.topology:
        # Another device's compiler must not get the local processor's flags.
        add_xla_flags(os.environ, "tpu" if is_tpu(args.topology) else "gpu")
        os.environ["JAX_PLATFORMS"], os.environ["JAXFORMER_XLA_FLAGS"] = "cpu", "off"
    import jax

    from jaxformer.runtime.backend import configure_backend

    if args.topology:
        jax.config.update("jax_platforms", "cpu")
    configure_backend()
    return absent_devices(args.topology) if args.topology else present_devices(args.devices)
