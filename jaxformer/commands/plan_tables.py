"""The tables of `python -m jaxformer plan`."""

from __future__ import annotations

from jaxformer.parallel.mesh import describe_mesh
from jaxformer.planning.decoding_plan import DecodingPlan
from jaxformer.planning.program_costs import (
    ATTENTION_SHARE,
    MEMORY_SHARE,
    PRODUCT_SHARE,
    Costs,
)
from jaxformer.planning.step_plan import PlannedRun, StepPlan
from jaxformer.planning.topology import wire
from jaxformer.training.checks.memory import describe_spec, format_bytes
from jaxformer.training.setup import count_parameters

UNKNOWN = "unknown: no published speed for this device; name one with --kind"


def format_plan(run: PlannedRun, plan: StepPlan) -> str:
    """What a step or an evaluation needs on each device, what it sends, and what bounds it."""
    needed, unit = plan.needed, run.objective.unit.replace("_", " ")
    memory = needed and _memory(
        needed.total,
        plan,
        f"{format_bytes(needed.state)} parameters and optimizer, "
        f"{format_bytes(needed.temporaries)} temporaries, {format_bytes(needed.batches)} batches",
    )
    lines = [
        *_head(run),
        f"batch        {describe_spec(plan.spec)}, {plan.units:,.0f} {unit} per device",
        f"memory       {memory or 'unknown: the compiler does not report it'}",
        *cost_lines(run, plan),
        f"bound        {_step_bound(run, plan)}",
        *_predicted(plan, plan.units * plan.devices, unit),
    ]
    return "\n".join(lines) + "\n"


def format_decoding(run: PlannedRun, plan: DecodingPlan) -> str:
    """What a search needs on each device, per token of every hypothesis and in total."""
    shape, needed = plan.shape, plan.needed
    memory = needed and _memory(
        needed.total,
        plan.whole,
        f"{format_bytes(needed.parameters)} parameters, {format_bytes(needed.temporaries)} "
        f"temporaries (the KV cache is {format_bytes(needed.cache)}), "
        f"{format_bytes(needed.batch)} batch",
    )
    search = "greedy" if shape.width == 1 else f"beam search, {shape.width} beams"
    lines = [
        *_head(run),
        f"search       {search}",
        f"batch        {shape.rows:,} sentences of {shape.source_length:,} tokens, at most "
        f"{shape.max_length:,} target tokens each",
        f"memory       {memory or 'unknown: the compiler does not report it'}",
        "one token of every hypothesis",
        *cost_lines(run, plan.token),
        f"bound        {_search_bound(plan.token, shape.rows, 'one token')}",
        *_predicted(plan.token, shape.rows),
        "the whole batch, if every sentence runs to the limit",
        *cost_lines(run, plan.whole),
        f"bound        {_search_bound(plan.whole, plan.tokens, 'the batch')}",
        *_predicted(plan.whole, plan.tokens),
    ]
    return "\n".join(lines) + "\n"


def _head(run: PlannedRun) -> list[str]:
    parameters = count_parameters(run.abstract.params)["total"]
    return [
        f"devices      {describe_mesh(run.mesh)}",
        f"model        {parameters:,} parameters, {run.objective.dtype}",
    ]


def _memory(total: int, costs: Costs, parts: str) -> str:
    of = f" of {format_bytes(costs.chip.memory)}" if costs.chip else ""
    return f"{format_bytes(total)}{of}: {parts}"


def cost_lines(run: PlannedRun, costs: Costs) -> list[str]:
    """Compute, memory traffic and messages of a call, each with its time at the peak."""
    chip, seconds = costs.chip, costs.seconds
    peak = f", peak {costs.peak / 1e12:,.1f} TFLOP/s" if costs.peak else ""
    speed = f", peak {chip.memory_speed / 1e9:,.0f} GB/s" if chip else ""
    sent = sum(one.sent for one in costs.collectives)
    return [
        f"compute      {_operations(costs.flops)}{peak}{_after_colon(seconds.compute)}",
        f"traffic      {format_bytes(costs.accessed)} of memory{speed}"
        f"{_after_colon(seconds.memory)}",
        f"network      {format_bytes(sent)} sent{_after_colon(seconds.network)}",
        *_collective_lines(run, costs),
        *_kernel_lines(costs),
    ]


def _operations(flops: float) -> str:
    return f"{flops / 1e12:,.3f} TFLOP" if flops >= 1e11 else f"{flops / 1e9:,.3f} GFLOP"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.{2 if seconds > 9.95e-5 else 4}f} ms"


def _after_colon(seconds: float | None) -> str:
    return "" if seconds is None else f": {_milliseconds(seconds)}"


def _collective_lines(run: PlannedRun, costs: Costs) -> list[str]:
    """One line per kind of collective, mesh axes and wire."""
    rows: dict[tuple[str, str, str], list[float]] = {}
    times = costs.network_seconds or [0.0] * len(costs.collectives)
    for one, seconds in zip(costs.collectives, times, strict=True):
        axes = "+".join(one.axes(dict(run.mesh.shape))) or "-"
        key = one.kind, axes, wire(costs.chip, one.group) if costs.chip else "-"
        row = rows.setdefault(key, [0, 0.0, 0.0, 0.0])
        for index, value in enumerate((one.count, one.size * one.count, one.sent, seconds)):
            row[index] += value
    if not rows:
        return []
    lines = [
        f"  {'collective':<20}{'over':<18}{'by':<9}{'calls':>6}{'arrays':>12}{'sent':>12}{'ms':>9}"
    ]
    for (kind, axes, by), (count, size, sent, seconds) in rows.items():
        took = f"{1e3 * seconds:,.2f}" if costs.network_seconds else "?"
        lines.append(
            f"  {kind:<20}{axes:<18}{by:<9}{count:>6,}{format_bytes(size):>12}"
            f"{format_bytes(sent):>12}{took:>9}"
        )
    return lines


def _kernel_lines(costs: Costs) -> list[str]:
    """One line per kind of kernel of a GPU program, most memory traffic first."""
    if not costs.kernels:
        return []
    lines = [f"  {'kernels':<20}{'calls':>8}{'memory':>12}"]
    for kernel in costs.kernels:
        lines.append(f"  {kernel.kind:<20}{kernel.count:>8,}{format_bytes(kernel.accessed):>12}")
    return lines


def _step_bound(run: PlannedRun, plan: StepPlan) -> str:
    seconds, enough = plan.seconds, plan.enough_units(run.mesh)
    if not seconds.bound:
        return UNKNOWN
    total, unit = plan.units * plan.devices, run.objective.unit.replace("_", " ")
    text = (
        f"{seconds.bound}: a step takes at least {_milliseconds(seconds.longest)}, "
        f"at most {total / seconds.longest:,.0f} {unit}/s, "
        f"{seconds.compute / seconds.longest:.0%} of the peak"
    )
    if enough == float("inf"):
        return f"{text}; sending takes longer than computing at any batch size"
    if plan.collectives and enough >= 1:
        text += f"; the network is the bound below {enough:,.0f} {unit} per device"
    return text


def _search_bound(costs: Costs, tokens: int, what: str) -> str:
    seconds = costs.seconds
    if not seconds.bound:
        return UNKNOWN
    return (
        f"{seconds.bound}: {what} takes at least {_milliseconds(seconds.longest)}, "
        f"at most {tokens / seconds.longest:,.0f} target tokens/s"
    )


def _predicted(costs: Costs, units: float, unit: str = "target tokens") -> list[str]:
    """The predicted time at assumed shares of the peaks; empty without published figures."""
    seconds = costs.predicted
    if not seconds:
        return []
    shares = f"products at {PRODUCT_SHARE:.0%} of the peak, "
    if any(kernel.kind == "attention" for kernel in costs.kernels):
        shares += f"attention at {ATTENTION_SHARE:.0%}, "
    return [
        f"predicted    {_milliseconds(seconds)}, {units / seconds:,.0f} {unit}/s; assumed: "
        f"{shares}the rest at {MEMORY_SHARE:.0%} of the memory's speed, no overlap of messages"
    ]
