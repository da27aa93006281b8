"""The programs of the matrix, compiled for devices that are not here."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import jax
from accelerator.combinations import Combination
from accelerator.program_facts import count_fused, moved_rows, read_products

from jaxformer.config import (
    Config,
    DataConfig,
    DecodingConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
)
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import with_shardings
from jaxformer.planning.decoding_plan import compile_decoding, search_shape
from jaxformer.planning.step_plan import PlannedRun, compile_evaluation, compile_step, plan_run
from jaxformer.planning.topology import absent_devices
from jaxformer.training.checks.memory import abstract_batch, bytes_per_device

# Of all sizes here only the rows are multiples of 7: by such an axis activations are known.
ROW_MARKER = 7
ROWS = {"gpu": 7 * 32, "tpu": 7 * 2}  # of each device; libtpu takes longer for more
BEAM_SIZE = {"greedy": 1, "beam": 4}
SMALL = TransformerConfig(
    num_encoder_layers=1, num_decoder_layers=1, d_model=128, d_ff=256, num_heads=4
)
MODELS = {
    "matrix": SMALL,
    "deep": dataclasses.replace(SMALL, num_encoder_layers=2, num_decoder_layers=2),
}
PIECES = {"matrix": 512, "deep": 512}
REAL_PIECES = 36_864


def length_of(one: Combination) -> int:
    """Tokens a row and side; splash works on blocks of 128."""
    if one.model == "deep":
        return 256
    return 128 if one.platform == "tpu" else 64


def config_of(one: Combination) -> Config:
    """The run of a combination."""
    length, sizes = length_of(one), one.sizes
    tokens = ROWS[one.platform] * sizes["data"] * sizes["fsdp"] * length
    model = MODELS.get(one.model) or TransformerConfig.preset(one.model)
    if one.remat != "off":
        model = dataclasses.replace(model, remat=True, remat_policy=one.remat)
    return Config(
        model=dataclasses.replace(model, dtype=one.dtype),
        data=DataConfig(batching=one.batching, tokens_per_batch=tokens, max_length=length),
        tokenizer=TokenizerConfig(vocab_size=PIECES.get(one.model, REAL_PIECES)),
        optimizer=OptimizerConfig(accumulation_steps=one.accumulation),
        decoding=DecodingConfig(beam_size=BEAM_SIZE.get(one.program, 1), tokens_per_batch=tokens),
        mesh=MeshConfig(**sizes),
    )


def compile_program(run: PlannedRun, program: str, length: int) -> tuple[Any, Any, int]:
    """The compiled program, its first argument, and the bytes of its rows on one device."""
    spec = run.task.planned_spec(run.config, length, 1)
    batch, params = abstract_batch(spec, run.mesh), run.abstract.params
    if program == "train":
        return compile_step(run, spec), run.abstract, bytes_per_device(batch)
    if program == "evaluation":
        return compile_evaluation(run, spec), params, bytes_per_device(batch)
    search = search_shape(run, length)
    numbers = search.rows * (search.source_length + 1) // batch_parts(run.mesh)
    return compile_decoding(run, search), params, 4 * numbers


def measure(one: Combination) -> dict[str, Any]:
    """Compile a combination; what the tests assert on, as plain values for JSON."""
    devices = absent_devices(one.topology)[: one.devices]
    run = plan_run(config_of(one), devices)
    started = time.monotonic()
    compiled, state, batch_bytes = compile_program(run, one.program, length_of(one))
    text, memory = compiled.as_text(), compiled.memory_analysis()
    leaves, placed = jax.tree.leaves(state), jax.tree.leaves(compiled.input_shardings[0][0])
    products = read_products(text)
    held = bytes_per_device(with_shardings(leaves, placed))
    return {
        "seconds": time.monotonic() - started,
        "whole_bytes": sum(leaf.dtype.itemsize * leaf.size for leaf in leaves),
        "held_bytes": held,
        "argument_bytes": memory.argument_size_in_bytes - batch_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "attentions": run.config.model.num_encoder_layers + 2 * run.config.model.num_decoder_layers,
        "fused": count_fused(text),
        "products": len(products),
        "wide_products": [one for one in products if "f32[" in one[0]],
        "moved_rows": moved_rows(text, dict(run.mesh.shape), ROW_MARKER),
    }
