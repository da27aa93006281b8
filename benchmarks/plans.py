"""What runs would need and reach on absent devices: python benchmarks/plans.py.

Compiles the train step of each configuration for each topology, or with --decode the searches of
`translate`, and prints a row of a markdown table as soon as it is ready; progress goes to stderr.
GPUs need `pip install -e ".[cuda]"`, TPUs `pip install -e ".[tpu]"`; topologies without their
compiler are named on stderr and skipped, and the exit status is 1. On two cores a row takes from
half a minute to a few minutes.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

from tables import markdown_table

CONFIGS = ("configs/wmt14_en_de_base.py", "configs/wmt14_en_de_big.py")
TOPOLOGIES = ("h100:8", "h200:8", "h200:4x8", "b200:8", "a100_80gb:8", "v5e:16x16")
TOKENS = 65_536  # target tokens a device of a model of d_model 512, fewer of a wider one
LEAST_TOKENS = 1024
SENTENCES = (32, 256)  # over all devices
SEARCHES = (1, 4)  # beams; 1 is greedy
STEP_HEADER = [
    "run, devices", "tokens a device", "state + temporaries", "attention", "kernels",
    "sent", "compute / traffic / network", "bound", "predicted",
]  # fmt: skip
SEARCH_HEADER = [
    "run, devices", "search", "sentences", "parameters + temporaries", "kernels a token",
    "sent a token", "compute / traffic / network a token", "bound", "predicted a token",
    "predicted",
]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    tpus, gpus = by_platform(options.topologies)
    if tpus and gpus:  # each compiler in a separate process, with its own flags
        given = list(sys.argv[1:] if arguments is None else arguments)
        return max(run_apart(given, topologies) for topologies in (gpus, tpus))
    start_jax("tpu" if tpus else "gpu")
    from jaxformer.commands.config_files import run_config_file
    from jaxformer.errors import InputError
    from jaxformer.planning.topology import absent_devices

    print(header(SEARCH_HEADER if options.decode else STEP_HEADER), flush=True)
    left_out = False
    for path in options.configs:
        for topology in options.topologies:
            name, started = f"{Path(path).stem}, {topology}", time.monotonic()
            print(f"compiling {name}", file=sys.stderr, flush=True)
            config = adapt(run_config_file(path), options)
            try:
                devices = absent_devices(topology)
                kind = devices[0].device_kind
                rows = (search_rows if options.decode else step_rows)(
                    name, config, devices, kind, options
                )
                for row in rows:
                    print("| " + " | ".join(row) + " |", flush=True)
            except InputError as error:
                print(f"{name}: left out: {error}", file=sys.stderr, flush=True)
                left_out = True
            seconds = time.monotonic() - started
            print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return 1 if left_out else 0


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--configs", nargs="+", default=CONFIGS, help="configuration files")
    parser.add_argument("--topologies", nargs="+", default=TOPOLOGIES, help="as of plan")
    parser.add_argument("--decode", action="store_true", help="searches instead of train steps")
    parser.add_argument("--length", type=int, default=64, help="tokens of a row and side")
    parser.add_argument("--dtype", default="bfloat16", help="of the model's computation")
    parser.add_argument(
        "--tokens", type=int, default=0, help="target tokens a device (default: by width)"
    )
    parser.add_argument(
        "--sentences", nargs="+", type=int, default=SENTENCES, help="of a batch, with --decode"
    )
    options = parser.parse_args(arguments)
    if min(options.length, *options.sentences) < 1 or options.tokens < 0:
        parser.error("--length, --sentences and --tokens must be positive")
    return options


def by_platform(topologies) -> tuple[list[str], list[str]]:
    """Those of TPUs and those of GPUs."""
    from jaxformer.planning.topology import is_tpu

    return [t for t in topologies if is_tpu(t)], [t for t in topologies if not is_tpu(t)]


def run_apart(given: list[str], topologies: list[str]) -> int:
    """Run the same command for some of its topologies in a separate process; its exit status."""
    command = [sys.executable, __file__, *given, "--topologies", *topologies]
    return subprocess.run(command, check=False).returncode


def start_jax(platform: str) -> None:
    """Configure JAX before it starts; JAX itself runs on the CPU."""
    from jaxformer.runtime.xla_flags import add_xla_flags

    add_xla_flags(os.environ, platform)
    os.environ["JAX_PLATFORMS"], os.environ["JAXFORMER_XLA_FLAGS"] = "cpu", "off"
    import jax

    from jaxformer.runtime.backend import configure_backend

    jax.config.update("jax_platforms", "cpu")
    configure_backend()


def header(names: list[str]) -> str:
    return markdown_table(names, [])


def adapt(values: dict, options: argparse.Namespace):
    """The configuration of a run for these tables."""
    from jaxformer.config import Config

    values["model"]["dtype"] = options.dtype
    values["data"]["max_length"] = max(options.length, values["data"]["max_length"])
    return Config.from_dict(values)


def step_rows(name: str, config, devices, kind: str, options: argparse.Namespace):
    """The row of a train step; of as many tokens as fit, halved from `options.tokens` on."""
    from jaxformer.errors import InputError
    from jaxformer.planning.step_plan import plan_run, plan_step

    tokens = options.tokens or TOKENS * 512 // max(config.model.d_model, 512)
    while True:
        data = dataclasses.replace(config.data, tokens_per_batch=tokens * len(devices))
        run = plan_run(dataclasses.replace(config, data=data), devices)
        try:
            plan = plan_step(run, options.length, kind)
            refused = plan.needed and plan.chip and plan.needed.total > plan.chip.memory
        except InputError as error:
            if "out of memory" not in str(error) or tokens < 2 * LEAST_TOKENS:
                raise
            refused = True
        if not refused or tokens < 2 * LEAST_TOKENS:
            break
        print(f"{name}: {tokens:,} tokens a device do not fit", file=sys.stderr, flush=True)
        tokens //= 2
    seconds, total = plan.predicted, plan.units * plan.devices
    yield [
        name,
        f"{plan.units:,.0f}",
        f"{size(plan.needed.state)} + {size(plan.needed.temporaries)}" if plan.needed else "?",
        attention(plan.text),
        kernels(plan),
        sent(plan),
        times(plan),
        plan.seconds.bound or "?",
        f"{1e3 * seconds:.1f} ms, {total / seconds:,.0f} tokens/s" if seconds else "?",
    ]


def search_rows(name: str, config, devices, kind: str, options: argparse.Namespace):
    """A row for each search and number of sentences."""
    from jaxformer.planning.decoding_plan import plan_decoding, search_shape
    from jaxformer.planning.step_plan import plan_run

    for beams in SEARCHES:
        for sentences in options.sentences:
            decoding = dataclasses.replace(
                config.decoding, beam_size=beams, tokens_per_batch=sentences * options.length
            )
            run = plan_run(dataclasses.replace(config, decoding=decoding), devices)
            plan = plan_decoding(run, search_shape(run, options.length, sentences), kind)
            token, whole = plan.token, plan.whole.predicted
            yield [
                name,
                "greedy" if beams == 1 else f"beam {beams}",
                f"{plan.shape.rows:,} x {plan.shape.source_length}, to {plan.shape.max_length}",
                f"{size(plan.needed.parameters)} + {size(plan.needed.temporaries)}"
                if plan.needed
                else "?",
                kernels(token),
                sent(token),
                times(token),
                token.seconds.bound or "?",
                f"{1e3 * token.predicted:.2f} ms" if token.predicted else "?",
                f"{plan.tokens / whole:,.0f} tokens/s" if whole else "?",
            ]


def size(count: float) -> str:
    from jaxformer.training.checks.memory import format_bytes

    return format_bytes(count) if count >= 2**16 else f"{count:,.0f} B"


def attention(text: str) -> str:
    """The implementation that a program calls."""
    return next(
        (name for mark, name in (("$fmha", "cuDNN"), ("splash", "splash")) if mark in text),
        "reference",
    )


def kernels(costs) -> str:
    """Launches of a GPU program; TPUs launch one program."""
    return f"{sum(kernel.count for kernel in costs.kernels):,}" if costs.kernels else "-"


def sent(costs) -> str:
    """Bytes that a device sends, by kind of collective."""
    kinds: collections.Counter = collections.Counter()
    for one in costs.collectives:
        kinds[one.kind] += one.sent
    return ", ".join(f"{kind} {size(count)}" for kind, count in kinds.most_common()) or "nothing"


def times(costs) -> str:
    """Milliseconds at published peaks."""
    return (
        " / ".join("?" if second is None else f"{1e3 * second:.2f}" for second in costs.seconds)
        + " ms"
    )


if __name__ == "__main__":
    sys.exit(main())
