"""Training speed compared with plain PyTorch: python benchmarks/train.py [--shapes tiny small].

Each system trains the same shape on the same random batch in a separate process, pinned to the
same cores. The parent runs one at a time, alternating, so that other load on the machine affects
all equally, and prints Markdown tables. Only this script needs PyTorch: pip install torch (and a
C++ compiler for its compiled form).

Three more measurements, of jaxformer only:

  --where                       which parts of a step take its time
  --memory                      memory of a step of `base`, with chunked and with full logits
  --input-pipeline --root=DIR   real batches compared with a repeated one (DIR: Multi30k, see
                                configs/multi30k_tiny.py)
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from training_speed.shapes import SHAPES
from training_speed.workers import OURS, SYSTEMS, measure, work

STEPS, PIPELINE_STEPS = 3, 20


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=7, help="timings of each system")
    parser.add_argument(
        "--steps",
        type=int,
        help=f"updates in a timing; {STEPS}, or {PIPELINE_STEPS} for --input-pipeline",
    )
    questions = parser.add_mutually_exclusive_group()
    questions.add_argument("--where", action="store_true", help="time the parts of a step")
    questions.add_argument("--memory", action="store_true", help="measure the memory of a step")
    questions.add_argument("--input-pipeline", action="store_true", help="time real batches")
    questions.add_argument("--worker", choices=SYSTEMS, help=argparse.SUPPRESS)
    questions.add_argument("--memory-worker", metavar="CASE", help=argparse.SUPPRESS)
    parser.add_argument("--root", help="folder of Multi30k's files, for --input-pipeline")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.steps is None:
        options.steps = PIPELINE_STEPS if options.input_pipeline else STEPS
    if min(options.rounds, options.steps) < 1:
        parser.error("--rounds and --steps must be at least 1")
    if options.input_pipeline != bool(options.root):
        parser.error("--input-pipeline and --root=DIR go together")
    options.systems = [name for name in SYSTEMS if name in {OURS, *options.systems}]
    return options


def compare_speed(options: argparse.Namespace) -> int:
    from training_speed.report import speed_report

    if importlib.util.find_spec("torch") is None and options.systems != [OURS]:
        print("error: PyTorch, the other side, is missing: pip install torch", file=sys.stderr)
        return 2
    measured = {
        name: measure(name, options.systems, options.rounds, options.steps)
        for name in options.shapes
    }
    print(speed_report(measured, options.rounds, options.steps))
    return 0


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if options.worker:
        work(options.worker, SHAPES[options.shape])
    elif options.memory_worker is not None:
        from training_speed.memory import measure_memory

        measure_memory(options.memory_worker)
    elif options.where:
        from training_speed.parts import parts_report

        for name in options.shapes:
            print(parts_report(name, options.steps), flush=True)
    elif options.memory:
        from training_speed.memory import memory_report

        print(memory_report())
    elif options.input_pipeline:
        from training_speed.real_batches import real_batches_report

        print(real_batches_report(options.root, options.rounds, options.steps))
    else:
        return compare_speed(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
