"""Bytes that a train step sends for each device, as a table: python benchmarks/scaling.py.

Compiles data parallel and FSDP steps of `base` and `big` for absent TPU slices; needs
`pip install -e ".[tpu]"` and, on two cores, a few minutes per row. The paper's models with
37,000 pieces, bfloat16 with float32 parameters, rows of 64 tokens, 1,024 target tokens per device.
"""

from __future__ import annotations

import argparse
import os
import sys

SLICES = {8: "v5e:2x4", 64: "v5e:8x8", 256: "v5e:16x16"}
TOKENS, LENGTH, PIECES = 1024, 64, 37_000
HEADER = (
    "| model | devices | mesh | parameters and optimizer a device | sent a step and device | by | "
    "network is the bound below |",
    "|---|---|---|---|---|---|---|",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["base", "big"])
    parser.add_argument("--chips", nargs="+", type=int, default=list(SLICES))
    parser.add_argument(
        "--meshes",
        nargs="+",
        default=["data", "fsdp", "axis"],
        help="fsdp: over all chips; axis: fsdp over one axis of the slice, data over the rest",
    )
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"], os.environ["JAXFORMER_XLA_FLAGS"] = "cpu", "off"
    from jaxformer.runtime.backend import configure_backend

    configure_backend()
    print("\n".join(HEADER), flush=True)
    for model in args.models:
        for chips in args.chips:
            for mesh in args.meshes:
                print(row(model, chips, mesh), flush=True)
    return 0


def row(model: str, chips: int, mesh: str) -> str:
    """One line of the table, from a compiled step."""
    from jaxformer.config import Config, DataConfig, MeshConfig, TokenizerConfig
    from jaxformer.model_config import TransformerConfig
    from jaxformer.planning.step_plan import plan_run, plan_step
    from jaxformer.planning.topology import tpu_devices
    from jaxformer.training.checks.memory import format_bytes

    side = int(SLICES[chips].rpartition("x")[2])
    axes = {
        "data": MeshConfig(),
        "fsdp": MeshConfig(data=1, fsdp=-1),
        "axis": MeshConfig(fsdp=side),
    }[mesh]
    name = f"data={chips // side} fsdp={side}" if mesh == "axis" else f"{mesh}={chips}"
    config = Config(
        model=TransformerConfig.preset(model, dtype="bfloat16", scan_layers=True),
        data=DataConfig(max_length=LENGTH, tokens_per_batch=TOKENS * chips),
        tokenizer=TokenizerConfig(vocab_size=PIECES),
        mesh=axes,
    )
    devices = tpu_devices(SLICES[chips])
    run = plan_run(config, devices)
    plan = plan_step(run, LENGTH, devices[0].device_kind)
    kinds: dict[str, float] = {}
    for one in plan.collectives:
        kinds[one.kind] = kinds.get(one.kind, 0.0) + one.sent
    parts = ", ".join(f"{kind} {format_bytes(sent)}" for kind, sent in kinds.items())
    return (
        f"| {model} | {chips} | {name} | {format_bytes(plan.needed.state)} | "
        f"{format_bytes(sum(kinds.values()))} | {parts} | "
        f"{plan.enough_units(run.mesh):,.0f} tokens |"
    )


if __name__ == "__main__":
    sys.exit(main())
