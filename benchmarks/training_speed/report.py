"""Measurements as Markdown."""

from __future__ import annotations

import os
import platform
import statistics
from pathlib import Path

from tables import markdown_table

from training_speed.shapes import (
    DROPOUT,
    LABEL_SMOOTHING,
    PEAK_SIZES,
    SHAPES,
    WARM_UP_STEPS,
    step_flops,
)
from training_speed.workers import (
    COMPILED,
    EAGER,
    OURS,
    REMAT,
    SYSTEMS,
    TUNED,
    Measurement,
    environment_of,
)

DIFFERENCES = """\
torch.nn.Transformer has biases on its attention projections and applies dropout to attention
weights and feed-forward activations, so jaxformer is configured to do the same; the presets follow
the paper, which has none of these. Remaining differences: PyTorch has one more LayerNorm after each
stack; jaxformer's step also measures the unsmoothed loss, the accuracy and the gradient norm. Both
start from their own random parameters."""


def median_and_range(values: list[float], digits: int = 2) -> str:
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"


def speed_table(measured: dict[str, Measurement]) -> str:
    """Tokens/s, FLOP/s and share of the peak of each system, and jaxformer's relative speed."""
    header = ["shape, system", "rows x length", "tokens/s", "GFLOP/s", "of the peak"]
    rows = []
    for shape_name, measurement in measured.items():
        shape = SHAPES[shape_name]
        for name, seconds in measurement.seconds.items():
            rate = step_flops(shape) / statistics.median(seconds)
            row = [f"{shape_name}, {SYSTEMS[name].title}", f"{shape.rows} x {shape.length}"]
            row.append(median_and_range([shape.tokens / value for value in seconds], 0))
            row += [f"{rate / 1e9:.1f}", f"{rate / measurement.best_peak():.0%}"]
            rows.append([*row, ratio(measurement, name) if name != OURS else "1"])
    return markdown_table([*header, "jaxformer / it"], rows)


def ratio(measurement: Measurement, name: str) -> str:
    """jaxformer's speed over that of `name`: median [lowest, highest] of the rounds."""
    pairs = zip(measurement.seconds[name], measurement.seconds[OURS], strict=True)
    return median_and_range([theirs / ours for theirs, ours in pairs])


def summary_table(measured: dict[str, Measurement]) -> str:
    """For each shape, jaxformer over the better of PyTorch eager and compiled, and the peaks."""
    header = ["shape", "jaxformer / best of eager and compiled", "which is"]
    libraries = list(next(iter(measured.values())).peaks)
    header += [f"peak of {'XLA' if name == OURS else 'PyTorch'}, GFLOP/s" for name in libraries]
    rows = []
    for shape_name, measurement in measured.items():
        plain = [name for name in (EAGER, COMPILED) if name in measurement.seconds]
        row = [shape_name, "-", "-"]
        if plain:
            best = min(plain, key=lambda name: statistics.median(measurement.seconds[name]))
            row = [shape_name, ratio(measurement, best), SYSTEMS[best].title]
        row += [f"{max(measurement.peaks[name]) / 1e9:.1f}" for name in libraries]
        rows.append(row)
    return markdown_table(header, rows)


def check_table(measured: dict[str, Measurement]) -> str:
    """Evidence that the systems do the same work, and other costs of a step and a start."""
    header = ["shape, system", "parameters", "loss at step 1", f"at step {WARM_UP_STEPS}"]
    header += ["start to first step, s", "page faults a step", "CPU while waiting"]
    rows = []
    for shape_name, measurement in measured.items():
        for name, facts in measurement.facts.items():
            row = [f"{shape_name}, {SYSTEMS[name].title}", f"{facts['parameters']:,}"]
            row += [f"{facts[loss]:.3f}" for loss in ("first_loss", "loss")]
            row.append(f"{facts['first_step_seconds']:.1f}")
            row.append(f"{statistics.median(measurement.faults[name]):,.0f}")
            rows.append([*row, f"{facts['idle_share']:.1%}"])
    return markdown_table(header, rows)


def processor_name() -> str:
    """The CPU model as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").split("\n")
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine(cores: int, versions: list[str]) -> str:
    """One line: processor, cores and versions."""
    return (
        f"{processor_name()}, {os.cpu_count()} cores, {cores} used; "
        f"{', '.join(dict.fromkeys(versions))}, Python {platform.python_version()}."
    )


def systems_note(systems: list[str]) -> str:
    """What the names of the systems mean."""
    notes = {
        REMAT: "jaxformer, model.remat: with `model.remat_policy=projections`, its default.",
        EAGER: "PyTorch eager: default settings.",
        COMPILED: "PyTorch compiled: model and loss through `torch.compile`, default mode.",
        TUNED: f"PyTorch tuned: eager with `Adam(fused=True)` and `{environment_of(TUNED)}`.",
    }
    return "\n".join(note for name, note in notes.items() if name in systems)


def differences(systems: list[str]) -> str:
    """What PyTorch does differently, if it is among the systems."""
    return DIFFERENCES if {EAGER, COMPILED, TUNED} & set(systems) else ""


def speed_report(measured: dict[str, Measurement], rounds: int, steps: int) -> str:
    facts = next(iter(measured.values())).facts
    versions = [fact["versions"] for fact in facts.values()]
    command = f"python benchmarks/train.py --rounds={rounds} --steps={steps}"
    sizes = ", ".join(map(str, PEAK_SIZES))
    return f"""\
`{command} --shapes {" ".join(measured)} --systems {" ".join(facts)}`

{machine(facts[OURS]["cores"], versions)}

{speed_table(measured)}

{summary_table(measured)}

Float32, dropout {DROPOUT}, label smoothing {LABEL_SMOOTHING}, Adam. Tokens/s: target tokens, median
[lowest, highest] of {rounds} rounds of {steps} steps, the systems alternating. Ratio: the same
statistics of the rounds' ratios, above 1 where jaxformer is faster. GFLOP/s: matrix products only,
at the median. Peak: the fastest float32 product of square matrices ({sizes}) of either library, in
the same rounds.
{systems_note(list(facts))}

{check_table(measured)}

{differences(list(facts))}"""
