"""A stack of layers: the encoder, or the decoder."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.model_config import TransformerConfig
from jaxformer.models.affine import PROJECTION, LayerNorm
from jaxformer.models.layers import LayerContext, LayerOutputs, TransformerLayer

REMAT_POLICIES = {
    "projections": jax.checkpoint_policies.save_only_these_names(PROJECTION),
    "nothing": jax.checkpoint_policies.nothing_saveable,
}


class TransformerStack(nn.Module):
    """L layers, and with pre-norm a final norm: the encoder or the decoder.

    Parameters are `layer_0 .. layer_{L-1}`, or `layers` with a leading axis L if scanned.
    """

    config: TransformerConfig
    num_layers: int
    attends_encoder: bool = False

    def setup(self):
        def layer() -> TransformerLayer:
            return TransformerLayer(self.config, self.attends_encoder)

        if self.config.scan_layers:
            self.layers = layer()
        else:
            self.layer = [layer() for _ in range(self.num_layers)]
        if self.config.norm == "pre":
            self.final_norm = LayerNorm(
                dtype=jnp.dtype(self.config.dtype),
                param_dtype=jnp.dtype(self.config.param_dtype),
            )

    def __call__(
        self,
        x: jax.Array,
        context: LayerContext,
        caches=None,
        *,
        deterministic: bool = True,
        return_weights: bool = False,
    ) -> tuple[jax.Array, LayerOutputs]:
        """Map `[B, T, D]` to `[B, T, D]`.

        Args:
          x: `[B, T, D]`.
          context: masks, positions and encoder output, shared by all layers.
          caches: pair (self-attention, cross-attention) of a `KVCache`; None: no cache.
          deterministic: no dropout.
          return_weights: also return the attention weights, stacked over layers.
        """

        def run(layer, x, cache):
            return layer(
                x, context, cache, deterministic=deterministic, return_weights=return_weights
            )

        if self.config.remat:
            run = nn.remat(run, policy=REMAT_POLICIES[self.config.remat_policy])
        if self.config.scan_layers:
            run = nn.scan(
                run,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=1,  # caches keep the batch in front: [B, L, S, N, H]
                out_axes=LayerOutputs(1, 0, 0),
                length=self.num_layers,
            )
            x, outputs = run(self.layers, x, caches)
        else:
            collected = []
            for i, layer in enumerate(self.layer):
                x, out = run(layer, x, None if caches is None else (caches[0][i], caches[1][i]))
                collected.append(out)
            outputs = _collect_outputs(collected)
        if self.config.norm == "pre":
            x = self.final_norm(x)
        return x, outputs

    def project_encoded(self, encoded: jax.Array):
        """Cross-attention keys and values of every layer, in the form that a `KVCache` holds."""
        if not self.config.scan_layers:
            return tuple(layer.project_encoded(encoded) for layer in self.layer)
        project = nn.scan(
            lambda layer, carry, _: (carry, layer.project_encoded(encoded)),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            out_axes=1,
            length=self.num_layers,
        )
        return project(self.layers, (), None)[1]


def _collect_outputs(collected: list[LayerOutputs]) -> LayerOutputs:
    def stack(values):
        return None if values[0] is None else jnp.stack(values)

    caches, self_weights, cross_weights = zip(*collected, strict=True)
    return LayerOutputs(
        None if caches[0] is None else caches, stack(self_weights), stack(cross_weights)
    )
