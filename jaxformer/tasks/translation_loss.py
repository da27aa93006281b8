"""The loss of translation: the encoder-decoder on a batch of sentence pairs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer.data.dataset import BatchSpec, num_rows
from jaxformer.data.pair_dataset import PairDataset
from jaxformer.model_config import TransformerConfig
from jaxformer.models.flops import Flops, forward_flops
from jaxformer.models.transformer import Transformer
from jaxformer.ops.attention_mask import AttentionSite
from jaxformer.ops.chunked_loss import automatic_chunk_tokens, chunked_loss_sums
from jaxformer.ops.losses import (
    label_smoothed_cross_entropy,
    shift_right,
    two_pass_cross_entropy,
)
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import BATCH_AXES
from jaxformer.tasks.task import Objective

MEASURED_PAIRS = 1_000_000  # of a larger corpus, evenly spread, for the mean FLOPs of a token


class Translation(Objective):
    """The sequence-to-sequence loss on batches of `inputs` and `targets`.

    Args:
      config: configuration of the model.
      pad_id: padding of `inputs` and `targets`.
      bos_id: starts the decoder's inputs.
      label_smoothing: eps of the loss.
      r_drop_alpha: in training each row passes through the model twice, with different dropout, and
        `two_pass_cross_entropy` is the loss, with this weight; 0: one pass.
      chunk_tokens: tokens whose logits (of both passes) are held at a time; 0: chosen by device and
        vocabulary.

    Attributes:
      model: the `Transformer`.
    """

    unit = "target_tokens"

    def __init__(
        self,
        config: TransformerConfig,
        *,
        pad_id: int,
        bos_id: int,
        label_smoothing: float = 0.0,
        r_drop_alpha: float = 0.0,
        chunk_tokens: int = 0,
    ):
        self.model = Transformer(config)
        self.pad_id, self.bos_id = pad_id, bos_id
        self.label_smoothing, self.r_drop_alpha = label_smoothing, r_drop_alpha
        self.chunk_tokens = chunk_tokens
        self.dtype, self.d_model = config.dtype, config.d_model

    def init(self, key: jax.Array) -> dict:
        token = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(key, token, token)["params"]

    def num_passes(self, *, training: bool) -> int:
        """Passes of each row through the model."""
        return 2 if training and self.r_drop_alpha > 0.0 else 1

    def chosen_chunk_tokens(self, platform: str, *, training: bool) -> int:
        """Tokens of a chunk of the loss."""
        if self.chunk_tokens:
            return self.chunk_tokens
        config = self.model.config
        tokens = automatic_chunk_tokens(config.output_vocab_size, config.d_model, platform)
        return tokens // self.num_passes(training=training)

    def loss_sums(
        self,
        params: dict,
        batch: dict[str, jax.Array],
        *,
        key: jax.Array | None = None,
        mesh: Mesh | None = None,
    ) -> dict[str, jax.Array]:
        """Sums over the target tokens of a batch, float32 scalars; only `loss` has a gradient.

        Args:
          params: parameters of the model.
          batch: `inputs [B, S]`, `targets [B, T]`, and for packed rows segments and positions.
          key: random key for dropout; None: evaluation, without dropout and with one pass.
          mesh: that shards the rows.

        Returns:
          `loss` (smoothed, nats), `nll` (nats), `correct` (tokens) and `weight` (tokens).
        """
        training = key is not None
        passes = self.num_passes(training=training)
        targets = batch["targets"]
        repeated = {name: jnp.repeat(x, passes, axis=0) for name, x in batch.items()}
        packed = {name: x for name, x in repeated.items() if name not in ("inputs", "targets")}
        lengths = jnp.sum(repeated["inputs"] != self.pad_id, axis=-1, dtype=jnp.int32)
        # A kernel that XLA cannot shard by itself needs to know the mesh.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if mesh else nullcontext():
            output = self.model.apply(
                {"params": params},
                repeated["inputs"],
                shift_right(repeated["targets"], self.bos_id, packed.get("targets_positions")),
                inputs_lengths=None if packed else lengths,
                **packed,
                deterministic=not training,
                rngs={"dropout": key} if training else None,
                project=False,
            )
        states = output.states
        if passes == 2:
            states = states.reshape(-1, 2, *states.shape[1:]).swapaxes(1, 2)  # [B, T, 2, D]
        table = self.model.output_table(params)
        smoothing = self.label_smoothing

        def token_sums(logits, arguments):  # [C, V], or [C, 2, V]
            losses = (
                two_pass_cross_entropy(logits, arguments["targets"], smoothing, self.r_drop_alpha)
                if passes == 2
                else label_smoothed_cross_entropy(logits, arguments["targets"], smoothing)
            )
            return {
                name: jnp.sum(value * arguments["weights"])
                for name, value in losses._asdict().items()
            }

        platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
        weights = (targets != self.pad_id).astype(jnp.float32)
        sums = chunked_loss_sums(
            token_sums,
            states,
            table,
            {"targets": targets, "weights": weights},
            chunk_tokens=self.chosen_chunk_tokens(platform, training=training),
            mesh=mesh,
            batch_axes=BATCH_AXES if mesh is not None and batch_parts(mesh) > 1 else (),
        )
        return sums | {"weight": jnp.sum(weights)}

    def summarize(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Means over target tokens.

        Returns:
          `loss` (smoothed, nats a token), `perplexity` (`exp` of the unsmoothed loss), `accuracy`.
        """
        tokens = max(sums["weight"], 1.0)
        return {
            "loss": sums["loss"] / tokens,
            "perplexity": math.exp(min(sums["nll"] / tokens, 700.0)),
            "accuracy": sums["correct"] / tokens,
        }

    def units(self, spec: BatchSpec) -> float:
        return math.prod(spec["targets"].shape)

    def flops(self, spec: BatchSpec) -> Flops:
        lengths = (np.full(num_rows(spec), spec[side].shape[1]) for side in ("inputs", "targets"))
        return forward_flops(self.model.config, *lengths)

    def training_flops(self, spec: BatchSpec) -> Flops:
        return self.flops(spec).times(3.0 * self.num_passes(training=True))

    def flops_per_unit(self, dataset: PairDataset) -> float:
        corpus = dataset.corpus
        pairs = np.arange(0, len(corpus), max(len(corpus) // MEASURED_PAIRS, 1))
        source, target = (
            offsets[pairs + 1] - offsets[pairs]
            for offsets in (corpus.source_offsets, corpus.target_offsets)
        )
        passes = self.num_passes(training=True)
        total = 3.0 * passes * forward_flops(self.model.config, source, target).total
        return total / float(target.sum())

    def activation_size(self, spec: BatchSpec) -> float:
        config, rows = self.model.config, num_rows(spec)
        source, target = (spec[side].shape[1] for side in ("inputs", "targets"))
        scores, inner = 3 * config.num_heads, 2 * config.d_ff
        encoder = source * (8 * config.d_model + inner) + scores * source**2
        decoder = target * (12 * config.d_model + inner) + scores * target * (target + source)
        return rows * (config.num_encoder_layers * encoder + config.num_decoder_layers * decoder)

    def attention_sites(self, spec: BatchSpec) -> Sequence[AttentionSite]:
        config = self.model.config
        site = functools.partial(
            AttentionSite,
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            dtype=config.dtype,
            implementation=config.attention_implementation,
            packed="inputs_segments" in spec,
            dropout=config.attention_dropout_rate > 0.0,
        )
        source, target = (spec[side].shape[1] for side in ("inputs", "targets"))
        return (
            site("encoder", source, source),
            site("decoder", target, target, causal=True),
            site("cross", target, source, is_cross=True),
        )

    def open_trips(self, spec: BatchSpec, mesh: Mesh, *, accumulation_steps: int = 0) -> int:
        """Iterations of the loop over chunks of logits."""
        training = accumulation_steps > 0
        tokens = int(self.units(spec)) // batch_parts(mesh)
        platform = mesh.devices.flat[0].platform
        chunk = self.chosen_chunk_tokens(platform, training=training)
        return -(-tokens // max(accumulation_steps, 1) // min(chunk, tokens))
