"""A stack of layers: an encoder, or a decoder with or without cross-attention."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.model_config import TransformerConfig
from jaxformer.models.affine import PROJECTION, LayerNorm
from jaxformer.models.layers import LayerCaches, LayerContext, LayerOutputs, TransformerLayer
from jaxformer.ops.attention_mask import AttentionMask
from jaxformer.ops.kv_cache import KVCache, empty_cache

REMAT_POLICIES = {
    "projections": jax.checkpoint_policies.save_only_these_names(PROJECTION),
    "nothing": jax.checkpoint_policies.nothing_saveable,
}


class StackOutput(NamedTuple):
    """What a stack returns; all but the states may be None.

    Attributes:
      states: `[B, T, D]`.
      cache: the given one with the new tokens.
      self_weights: `[L, B, N, T, S]`, S columns with a cache, else T.
      cross_weights: `[L, B, N, T, S]`.
    """

    states: jax.Array
    cache: KVCache | None = None
    self_weights: jax.Array | None = None
    cross_weights: jax.Array | None = None


class TransformerStack(nn.Module):
    """L layers, and with pre-norm a final norm: an encoder or a decoder.

    With `attends_encoder` it is the decoder of an encoder-decoder; without it an encoder or, given
    a causal mask or a cache, a decoder-only model.

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
        cache: KVCache | None = None,
        *,
        deterministic: bool = True,
        return_weights: bool = False,
    ) -> StackOutput:
        """Map `[B, T, D]` to `[B, T, D]`.

        Args:
          x: `[B, T, D]`.
          context: masks, positions and encoder output, shared by all layers.
          cache: from `init_cache` or an earlier call. The T tokens are the next ones after those in
            it; they see these, and of each other the earlier ones.
          deterministic: no dropout.
          return_weights: also return the attention weights, stacked over layers.
        """
        caches = None
        if cache is not None:
            caches = LayerCaches(cache.self_attention, cache.cross_attention)
            context = _with_cache(context, cache)

        def run(layer, x, caches):
            return layer(
                x, context, caches, deterministic=deterministic, return_weights=return_weights
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
                x, out = run(layer, x, _caches_of_layer(caches, i))
                collected.append(out)
            outputs = _collect_outputs(collected)
        if self.config.norm == "pre":
            x = self.final_norm(x)
        if cache is not None:
            index = cache.index + x.shape[1]
            cache = cache._replace(self_attention=outputs.cache, index=index)
        return StackOutput(x, cache, outputs.self_weights, outputs.cross_weights)

    def init_cache(
        self,
        rows: int,
        columns: int,
        *,
        starts: jax.Array | None = None,
        encoded: jax.Array | None = None,
        inputs_mask: jax.Array | None = None,
    ) -> KVCache:
        """An empty cache, with the keys and values of cross-attention computed once.

        Args:
          rows: R, hypotheses.
          columns: C, tokens of the longest row and the padding before them.
          starts: int32 `[R]`, columns of padding before each row's first token; None: none.
          encoded: `[B, S, D]`, for cross-attention; R is a multiple of B.
          inputs_mask: bool `[B, S]`; None: all are tokens.
        """
        config = self.config
        sizes = (rows, columns, config.num_heads, config.head_dim, jnp.dtype(config.dtype))
        if config.scan_layers:
            empty = empty_cache(*sizes, scanned_layers=self.num_layers)
        else:
            empty = tuple(empty_cache(*sizes) for _ in range(self.num_layers))
        cache = KVCache(empty, jnp.zeros((), jnp.int32), starts)
        if not self.attends_encoder:
            return cache
        if inputs_mask is None:
            inputs_mask = jnp.ones(encoded.shape[:2], bool)
        return cache._replace(
            cross_attention=self.project_encoded(encoded), inputs_mask=inputs_mask[:, None, None, :]
        )

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


def _with_cache(context: LayerContext, cache: KVCache) -> LayerContext:
    """The context of a step: the cache says what is seen, so a causal mask has no meaning here."""
    context = context._replace(
        self_mask=dataclasses.replace(context.self_mask, causal=False),
        index=cache.index,
        starts=cache.starts,
    )
    if cache.inputs_mask is None:
        return context
    return context._replace(cross_mask=AttentionMask(mask=cache.inputs_mask))


def _caches_of_layer(caches: LayerCaches | None, layer: int) -> LayerCaches | None:
    if caches is None:
        return None
    across = caches.cross_attention
    return LayerCaches(caches.self_attention[layer], None if across is None else across[layer])


def _collect_outputs(collected: list[LayerOutputs]) -> LayerOutputs:
    def stack(values):
        return None if values[0] is None else jnp.stack(values)

    caches, self_weights, cross_weights = zip(*collected, strict=True)
    return LayerOutputs(
        None if caches[0] is None else caches, stack(self_weights), stack(cross_weights)
    )
