"""`python -m jaxformer plan`: memory, work and messages of a train step on a pod not yet there."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

from jaxformer.commands.config_files import run_config_file
from jaxformer.commands.config_overrides import parse_value
from jaxformer.commands.file_names import OutputName
from jaxformer.config import Config, field_types
from jaxformer.errors import InputError
from jaxformer.files.outputs import check_output
from jaxformer.parallel.launch import Launch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="file whose get_config() describes the run")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--topology",
        help="devices to compile for that are not here: a TPU slice such as v5e:16x16 (needs "
        "libtpu), or GPUs such as h200:8, or nodes x devices of each, h200:4x8 (needs JAX's CUDA "
        "packages)",
    )
    where.add_argument("--devices", type=int, help="devices of the kind that is here")
    parser.add_argument(
        "--kind", help="with --devices: reckon with these GPUs, e.g. 'NVIDIA H100 80GB HBM3'"
    )
    parser.add_argument(
        "--length", type=int, help="tokens a row and side (default: data.max_length, the largest)"
    )
    parser.add_argument(
        "--hlo",
        type=OutputName,
        help="file for the compiled program, to see which gather is which",
    )
    parser.add_argument(
        "--config.SECTION.FIELD", metavar="VALUE", dest="_", help="any option, as for train.py"
    )
    for name in field_types():
        parser.add_argument(f"--config.{name}", dest=name, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    config = load_config(args)
    if args.length is not None and not 2 <= args.length <= config.data.max_length:
        raise InputError(
            f"--length={args.length} must be between 2 and data.max_length={config.data.max_length}"
        )
    check_kind(args)
    if args.hlo is not None:
        check_output(args.hlo, "step.hlo", flag="--hlo")
    devices = find_devices(args)
    from jaxformer.parallel.distributed import job
    from jaxformer.training.memory import smallest_budget
    from jaxformer.training.planning import advise, plan_run, plan_step

    planned, refused = plan_run(config, devices), []
    smallest = smallest_budget(planned.config, planned.mesh)
    if config.data.tokens_per_batch < smallest:
        refused.append(
            f"data.tokens_per_batch={config.data.tokens_per_batch} is less than a row of "
            f"data.max_length={config.data.max_length} for each part of the mesh; raise it to "
            f"{smallest} (as planned here) or take fewer devices"
        )
        data = dataclasses.replace(planned.config.data, tokens_per_batch=smallest)
        planned = planned._replace(config=dataclasses.replace(planned.config, data=data))
    length = args.length or config.data.max_length
    kind = devices[0].device_kind
    print(f"compiling for {len(devices)} x {kind}; this takes minutes", file=sys.stderr, flush=True)
    with job(Launch(num_processes=1)):  # Ctrl-C while it compiles is answered there
        plan = plan_step(planned, length, args.kind or kind, program_file=args.hlo)
    more, advice = advise(planned, plan)
    sys.stdout.write(format_plan(planned, plan))
    for line in advice:
        print(f"advice       {line}")
    for line in refused + more:
        print(f"refused      {line}")
    return 2 if refused + more else 0


def load_config(args: argparse.Namespace) -> Config:
    """The configuration of `--config` with the `--config.section.field=value` of the command."""
    values = run_config_file(args.config)
    for name in field_types():
        text = getattr(args, name)
        if text is not None:
            section, _, field = name.rpartition(".")
            (values[section] if section else values)[field] = parse_value(name, text)
    return Config.from_dict(values)


def check_kind(args: argparse.Namespace) -> None:
    """Raise `InputError` unless `--kind` names GPUs of known speed, for `--devices`."""
    from jaxformer.parallel.topology import CHIPS, find_chip

    if args.kind is None:
        return
    chip = find_chip(args.kind)
    if args.topology or chip is None or chip.wraps:
        known = ", ".join(pattern for pattern, chip in CHIPS if not chip.wraps)
        raise InputError(
            f"--kind={args.kind!r}: with --devices it may be one of {known}; TPUs are named with "
            "--topology"
        )


def find_devices(args: argparse.Namespace) -> list[Any]:
    """What to compile for; starts JAX."""
    from jaxformer.parallel.topology import absent_devices, is_tpu, present_devices
    from jaxformer.parallel.xla_flags import add_xla_flags

    if args.topology:
        # Another device's compiler must not get the flags of the processor that it runs on.
        add_xla_flags(os.environ, "tpu" if is_tpu(args.topology) else "gpu")
        os.environ["JAX_PLATFORMS"], os.environ["JAXFORMER_XLA_FLAGS"] = "cpu", "off"
    import jax

    from jaxformer.parallel.backend import configure_backend

    if args.topology:
        jax.config.update("jax_platforms", "cpu")
    configure_backend()
    return absent_devices(args.topology) if args.topology else present_devices(args.devices)


def format_plan(run, plan) -> str:
    """The table: what a step needs of each device, what it sends, and what it waits for."""
    from jaxformer.parallel.mesh import describe_mesh
    from jaxformer.training.memory import format_bytes
    from jaxformer.training.setup import count_parameters

    model, shape, seconds = run.config.model, plan.shape, plan.seconds
    needed, chip = plan.needed, plan.chip
    of = f" of {format_bytes(chip.memory)}" if chip else ""
    memory = "unknown: the compiler does not tell"
    if needed:
        memory = (
            f"{format_bytes(needed.total)}{of}: {format_bytes(needed.state)} parameters and "
            f"optimizer, {format_bytes(needed.temporaries)} temporaries, "
            f"{format_bytes(needed.batches)} batches"
        )
    peak = f", peak {plan.peak / 1e12:,.1f} TFLOP/s" if plan.peak else ""
    speed = f", peak {chip.memory_speed / 1e9:,.0f} GB/s" if chip else ""
    sent = sum(one.sent for one in plan.collectives)
    parameters = count_parameters(run.abstract.params)["total"]
    lines = [
        f"devices      {describe_mesh(run.mesh)}",
        f"model        {parameters:,} parameters, {model.dtype}",
        f"batch        {shape.rows:,} x ({shape.source_length:,} + {shape.target_length:,}) "
        f"tokens, {plan.tokens:,.0f} target tokens a device",
        f"memory       {memory}",
        f"compute      {plan.flops / 1e12:,.3f} TFLOP{peak}{_milliseconds(seconds.compute)}",
        f"traffic      {format_bytes(plan.accessed)} of memory{speed}"
        f"{_milliseconds(seconds.memory)}",
        f"network      {format_bytes(sent)} sent{_milliseconds(seconds.network)}",
        *_collective_lines(run, plan),
        *_kernel_lines(plan),
        f"bound        {_bound(run, plan)}",
    ]
    return "\n".join(lines) + "\n"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f": {1e3 * seconds:,.2f} ms"


def _collective_lines(run, plan) -> list[str]:
    """One line for each kind of collective, axes of the mesh and wire."""
    from jaxformer.parallel.topology import wire
    from jaxformer.training.memory import format_bytes

    rows: dict[tuple[str, str, str], list[float]] = {}
    times = plan.network_seconds or [0.0] * len(plan.collectives)
    for one, seconds in zip(plan.collectives, times, strict=True):
        axes = "+".join(one.axes(dict(run.mesh.shape))) or "-"
        key = one.kind, axes, wire(plan.chip, one.group) if plan.chip else "-"
        row = rows.setdefault(key, [0, 0.0, 0.0, 0.0])
        for index, value in enumerate((one.count, one.size * one.count, one.sent, seconds)):
            row[index] += value
    if not rows:
        return []
    lines = [
        f"  {'collective':<20}{'over':<18}{'by':<9}{'calls':>6}{'arrays':>12}{'sent':>12}{'ms':>9}"
    ]
    for (kind, axes, by), (count, size, sent, seconds) in rows.items():
        took = f"{1e3 * seconds:,.2f}" if plan.network_seconds else "?"
        lines.append(
            f"  {kind:<20}{axes:<18}{by:<9}{count:>6,}{format_bytes(size):>12}"
            f"{format_bytes(sent):>12}{took:>9}"
        )
    return lines


def _kernel_lines(plan) -> list[str]:
    """One line for each kind of kernel of a GPU program, that with most memory traffic first."""
    from jaxformer.training.memory import format_bytes

    if not plan.kernels:
        return []
    lines = [f"  {'kernels':<20}{'calls':>8}{'memory':>12}"]
    for kernel in plan.kernels:
        lines.append(f"  {kernel.kind:<20}{kernel.count:>8,}{format_bytes(kernel.accessed):>12}")
    return lines


def _bound(run, plan) -> str:
    seconds, enough = plan.seconds, plan.enough_tokens(run.mesh)
    if not seconds.bound:
        return "unknown: no published figures of this device; name one with --kind"
    longest = getattr(seconds, seconds.bound)
    total = plan.shape.rows * plan.shape.target_length
    share = seconds.compute / longest
    text = (
        f"{seconds.bound}: a step takes {1e3 * longest:,.2f} ms at least, {total / longest:,.0f} "
        f"target tokens/s at most, {share:.0%} of the peak"
    )
    if enough == float("inf"):
        return f"{text}; it sends longer than it computes at any batch size"
    if plan.collectives:
        text += f"; the network is the bound below {enough:,.0f} target tokens a device"
    return text
