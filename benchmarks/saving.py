"""The cost of saving during a run: python benchmarks/saving.py [--shape=base] [--interval=100].

One process trains intervals of the same step; every other interval begins with a save to a
temporary folder, as in training: the blocking part is timed, the rest is written in the background.
Prints the blocking part as a share of the interval, and the ratio of the medians of the intervals
with and without a save.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from training_speed.jaxformer_trainer import prepare_step
from training_speed.shapes import SHAPES


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="base")
    parser.add_argument("--interval", type=int, default=100, help="steps from save to save")
    parser.add_argument("--rounds", type=int, default=2, help="intervals of each kind")
    options = parser.parse_args(arguments)
    if min(options.interval, options.rounds) < 1:
        parser.error("--interval and --rounds must be at least 1")
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(SHAPES[options.shape], Path(folder), options.interval, options.rounds)
    print(report(options.shape, options.interval, *measured))
    return 0


def measure(
    shape, folder: Path, interval: int, rounds: int
) -> tuple[list[float], list[float], list[float], int]:
    """Seconds of intervals without and with a save, of the blocking parts, and bytes of a save."""
    import jax

    from jaxformer.config import Config
    from jaxformer.storage.checkpoint import Checkpointer
    from jaxformer.tasks.registry import ranking_of

    train_step, state, batch, key = prepare_step(shape)
    without, with_save, blocking = [], [], []
    with Checkpointer(folder, keep=2, ranking=ranking_of(Config())) as checkpointer:
        # The first interval only warms up; a kind never comes twice in a row.
        for number in range(2 * rounds + 1):
            saves = number % 2 == 0
            started = time.perf_counter()
            if saves:
                checkpointer.save(number, state, {}, None)
                blocked = time.perf_counter() - started
            for _ in range(interval):
                state, sums = train_step(state, batch, key)
                jax.block_until_ready(sums)
            seconds = time.perf_counter() - started
            # What is still being written must not fall on the other kind.
            checkpointer.wait()
            if number and saves:
                with_save.append(seconds)
                blocking.append(blocked)
            elif number:
                without.append(seconds)
            print(f"interval {number}: {seconds:.1f} s, saving: {saves}", file=sys.stderr)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return without, with_save, blocking, size


def report(
    name: str,
    interval: int,
    without: list[float],
    with_save: list[float],
    blocking: list[float],
    size: int,
) -> str:
    """A Markdown table."""
    plain, saving = statistics.median(without), statistics.median(with_save)
    return "\n".join(
        [
            f"| shape | checkpoint | {interval} steps | with a save | ratio | blocking | share |",
            "|---|---:|---:|---:|---:|---:|---:|",
            f"| {name} | {size / 2**20:,.0f} MiB | {plain:.1f} s | {saving:.1f} s | "
            f"{saving / plain:.3f} | {statistics.median(blocking):.2f} s | "
            f"{statistics.median(blocking) / saving:.2%} |",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
