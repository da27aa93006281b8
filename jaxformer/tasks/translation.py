"""Translation: what a batch of sentence pairs means to the model, and what is measured on it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.ops.losses import label_smoothed_cross_entropy, shift_right


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
    ) -> dict[str, jax.Array]:
        """Sums over the target tokens of a batch, float32 scalars.

        Args:
          params: of the model.
          batch: `inputs [B, S]`, `targets [B, T]`, and for packed rows segments and positions.
          label_smoothing: eps of the loss.
          dropout_key: None: no dropout.

        Returns:
          `loss` (smoothed, nats), `nll` (nats), `correct` (tokens) and `tokens`.
        """
        targets = batch["targets"]
        packed = {
            name: batch[name]
            for name in (
                "inputs_segments",
                "inputs_positions",
                "targets_segments",
                "targets_positions",
            )
            if name in batch
        }
        logits = self.model.apply(
            {"params": params},
            batch["inputs"],
            shift_right(targets, self.bos_id, packed.get("targets_positions")),
            inputs_mask=None if packed else batch["inputs"] != self.pad_id,
            **packed,
            deterministic=dropout_key is None,
            rngs=None if dropout_key is None else {"dropout": dropout_key},
        )
        losses = label_smoothed_cross_entropy(logits, targets, label_smoothing)
        weights = (targets != self.pad_id).astype(jnp.float32)
        sums = {name: jnp.sum(value * weights) for name, value in losses._asdict().items()}
        return sums | {"tokens": jnp.sum(weights)}
