"""jaxformer's side: its own training step on one of the shapes, and XLA's matrix products."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from training_speed.shapes import (
    BOS_ID,
    DROPOUT,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    PAD_ID,
    PEAK_SECONDS,
    PEAK_SIZES,
    Shape,
    Trainer,
    random_batch,
)

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}  # a cold start


class TrainingStep(NamedTuple):
    """jaxformer's compiled-on-first-use update and its first arguments."""

    train_step: Any
    state: Any
    batch: dict[str, Any]
    key: Any


def model_config(shape: Shape, *, remat_policy: str = ""):
    from jaxformer.model_config import TransformerConfig

    return TransformerConfig(  # dropout and biases wherever torch.nn.Transformer has them
        vocab_size=shape.vocab_size,
        num_encoder_layers=shape.layers,
        num_decoder_layers=shape.layers,
        d_model=shape.d_model,
        d_ff=shape.d_ff,
        num_heads=shape.heads,
        attention_bias=True,
        dropout_rate=DROPOUT,
        attention_dropout_rate=DROPOUT,
        activation_dropout_rate=DROPOUT,
        remat=bool(remat_policy),
        remat_policy=remat_policy or "projections",
    )


def prepare_step(
    shape: Shape, *, loss_chunk_tokens: int = 0, remat_policy: str = ""
) -> TrainingStep:
    """jaxformer's step, its initial state and a batch; nothing has run yet.

    Args:
      shape: of the model and the batch.
      loss_chunk_tokens: as in the configuration; `shape.tokens` holds all logits at once.
      remat_policy: as in the configuration of the model; "": `remat` is off.
    """
    import jax

    from jaxformer.config import MeshConfig, OptimizerConfig, TrainingConfig
    from jaxformer.parallel.mesh import make_mesh
    from jaxformer.parallel.sharding import shard_batch
    from jaxformer.runtime.backend import configure_backend
    from jaxformer.tasks.translation_loss import Translation
    from jaxformer.training.program import TrainingProgram

    configure_backend()
    objective = Translation(
        model_config(shape, remat_policy=remat_policy),
        pad_id=PAD_ID,
        bos_id=BOS_ID,
        label_smoothing=LABEL_SMOOTHING,
        chunk_tokens=loss_chunk_tokens,
    )
    optimizer = OptimizerConfig(schedule="constant", learning_rate=LEARNING_RATE, warmup_steps=0)
    mesh = make_mesh(MeshConfig())
    program = TrainingProgram(objective, optimizer, TrainingConfig().num_steps)
    state = program.first_state(jax.random.key(0), mesh)
    batch = shard_batch(random_batch(shape), mesh)
    return TrainingStep(program.train_step(mesh), state, batch, jax.random.key(1))


def prepare_jaxformer(shape: Shape, *, remat_policy: str = "") -> Trainer:
    import jax

    import jaxformer

    train_step, state, batch, key = prepare_step(shape, remat_policy=remat_policy)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))

    def run(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, sums = train_step(state, batch, key)
        jax.block_until_ready((state, sums))
        return float(sums["loss"]) / float(sums["weight"])

    return Trainer(run, parameters, f"jaxformer {jaxformer.__version__}, jax {jax.__version__}")


def xla_peak() -> float:
    """FLOP/s of XLA's fastest float32 product of two square matrices."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)
    peak = 0.0
    for size in PEAK_SIZES:
        matrix = jnp.full((size, size), 0.5, jnp.float32)
        multiply(matrix, matrix).block_until_ready()
        end = time.perf_counter() + PEAK_SECONDS
        while (start := time.perf_counter()) < end:
            multiply(matrix, matrix).block_until_ready()
            peak = max(peak, 2.0 * size**3 / (time.perf_counter() - start))
    return peak
