"""Memory of a training step of `base`, with the logits in chunks and all at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from process_memory import process_memory
from tables import markdown_table

from training_speed import ROOT, jaxformer_trainer
from training_speed.report import machine
from training_speed.shapes import SHAPES, pin_to_cores

SHAPE = SHAPES["base"]._replace(rows=64, length=64)


class Case(NamedTuple):
    """A row of the table."""

    title: str
    loss_chunk_tokens: int  # as in the configuration; all tokens in one chunk hold all logits
    remat_policy: str  # "": model.remat is off


CASES = {
    "chunks": Case("logits in chunks", 0, ""),
    "whole": Case("all logits at once", SHAPE.tokens, ""),
    "chunks-projections": Case("logits in chunks, model.remat", 0, "projections"),
    "whole-projections": Case("all logits at once, model.remat", SHAPE.tokens, "projections"),
    "chunks-nothing": Case("logits in chunks, remat_policy=nothing", 0, "nothing"),
    "whole-nothing": Case("all logits at once, remat_policy=nothing", SHAPE.tokens, "nothing"),
}
MIB = 2**20


def forget_peak_resident() -> None:
    """Reset VmHWM."""
    Path("/proc/self/clear_refs").write_text("5")


def measure_memory(name: str) -> None:
    """A worker: compile a step, run it three times and print its memory in JSON, in bytes."""
    cores = pin_to_cores()
    import jax

    import jaxformer

    case = CASES[name]
    train_step, state, batch, key = jaxformer_trainer.prepare_step(
        SHAPE, loss_chunk_tokens=case.loss_chunk_tokens, remat_policy=case.remat_policy
    )
    compiled = train_step.lower(state, batch, key).compile()
    analysis = compiled.memory_analysis()
    state, _ = jax.block_until_ready(compiled(state, batch, key))
    until_first = process_memory("VmHWM")
    forget_peak_resident()
    for _ in range(2):
        state, sums = jax.block_until_ready(compiled(state, batch, key))
    print(
        json.dumps(
            {
                "temporaries": analysis.temp_size_in_bytes,
                "arguments": analysis.argument_size_in_bytes,
                "until_first": until_first,
                "later": process_memory("VmHWM"),
                "loss": float(sums["loss"]) / float(sums["weight"]),
                "cores": cores,
                "versions": f"jaxformer {jaxformer.__version__}, jax {jax.__version__}",
            }
        )
    )


def memory_report() -> str:
    """Each case in a fresh process, as Markdown."""
    header = ["step", "temporaries, MiB", "state and batch, MiB", "resident to the end of step 1"]
    header += ["resident in steps 2 and 3", "loss at step 3"]
    rows = []
    for name, case in CASES.items():
        print(f"memory: {case.title}", file=sys.stderr)
        answer = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "train.py"), f"--memory-worker={name}"],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=os.environ | jaxformer_trainer.ENVIRONMENT,
        )
        facts = json.loads(answer.stdout)
        sizes = ("temporaries", "arguments", "until_first", "later")
        row = [f"{facts[size] / MIB:,.0f}" for size in sizes]
        rows.append([case.title, *row, f"{facts['loss']:.3f}"])
    return f"""\
`python benchmarks/train.py --memory`

{machine(facts["cores"], [facts["versions"]])}

A step of `base` on {SHAPE.rows} x {SHAPE.length} target tokens with a vocabulary of
{SHAPE.vocab_size:,}, float32; all logits are {SHAPE.tokens * SHAPE.vocab_size * 4 / MIB:,.0f} MiB.
Temporaries: what the compiled step allocates besides its arguments (`memory_analysis()`). Resident:
peak memory of the whole process (VmHWM) in MiB; the first of the two columns includes compilation.

{markdown_table(header, rows)}"""
