"""Translation: what a batch of sentence pairs means to the model, and what is measured on it."""

from __future__ import annotations

from contextlib import nullcontext

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.ops.chunked_loss import automatic_chunk_tokens, chunked_loss_sums
from jaxformer.ops.losses import (
    label_smoothed_cross_entropy,
    shift_right,
    two_pass_cross_entropy,
)
from jaxformer.parallel.mesh import batch_parts
from jaxformer.parallel.sharding import BATCH_AXES


class Translation:
    """The sequence-to-sequence task on batches of `inputs` and `targets`.

    Attributes:
      model: the `Transformer`.
      pad_id: padding of `inputs` and `targets`.
      bos_id: starts the decoder's inputs.
    """

    def __init__(self, config: TransformerConfig, *, pad_id: int, bos_id: int):
        self.model = Transformer(config)
        self.pad_id = pad_id
        self.bos_id = bos_id

    def init(self, key: jax.Array) -> dict:
        """Parameters drawn from `key`: the plain nested dict of the modules."""
        token = jnp.zeros((1, 1), jnp.int32)
        return self.model.init(key, token, token)["params"]

    def loss_sums(
        self,
        params: dict,
        batch: dict[str, jax.Array],
        *,
        label_smoothing: float = 0.0,
        dropout_key: jax.Array | None = None,
        r_drop_alpha: float = 0.0,
        chunk_tokens: int = 0,
        mesh: Mesh | None = None,
    ) -> dict[str, jax.Array]:
        """Sums over the target tokens of a batch, float32 scalars; only `loss` has a gradient.

        With dropout and `r_drop_alpha` above 0 each row goes through the model twice, with dropout
        of its own, and the loss is that of `two_pass_cross_entropy`.

        Args:
          params: of the model.
          batch: `inputs [B, S]`, `targets [B, T]`, and for packed rows segments and positions.
          label_smoothing: eps of the loss.
          dropout_key: None: no dropout.
          r_drop_alpha: weight of the divergence; 0: one pass.
          chunk_tokens: tokens whose logits (of both passes) are held at a time; 0: by the
            device and the vocabulary.
          mesh: on which the rows are cut.

        Returns:
          `loss` (smoothed, nats), `nll` (nats), `correct` (tokens) and `tokens`.
        """
        passes = 2 if r_drop_alpha > 0.0 and dropout_key is not None else 1
        targets = batch["targets"]
        repeated = {name: jnp.repeat(x, passes, axis=0) for name, x in batch.items()}
        packed = {name: x for name, x in repeated.items() if name not in ("inputs", "targets")}
        lengths = jnp.sum(repeated["inputs"] != self.pad_id, axis=-1, dtype=jnp.int32)
        # A kernel that XLA cannot cut by itself needs to know the mesh.
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh) if mesh else nullcontext():
            states = self.model.apply(
                {"params": params},
                repeated["inputs"],
                shift_right(repeated["targets"], self.bos_id, packed.get("targets_positions")),
                inputs_lengths=None if packed else lengths,
                **packed,
                deterministic=dropout_key is None,
                rngs=None if dropout_key is None else {"dropout": dropout_key},
                project=False,
            )
        if passes == 2:
            states = states.reshape(-1, 2, *states.shape[1:]).swapaxes(1, 2)  # [B, T, 2, D]
        table = self.model.output_table(params)

        def token_sums(logits, arguments):  # [C, V], or [C, 2, V]
            losses = (
                two_pass_cross_entropy(logits, arguments["targets"], label_smoothing, r_drop_alpha)
                if passes == 2
                else label_smoothed_cross_entropy(logits, arguments["targets"], label_smoothing)
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
            chunk_tokens=chunk_tokens or automatic_chunk_tokens(*table.shape, platform) // passes,
            mesh=mesh,
            batch_axes=BATCH_AXES if mesh is not None and batch_parts(mesh) > 1 else (),
        )
        return sums | {"tokens": jnp.sum(weights)}
