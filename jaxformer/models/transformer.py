"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.models.layers import LayerContext
from jaxformer.models.stack import TransformerStack
from jaxformer.ops.attention_mask import (
    EVERYTHING,
    AttentionMask,
    model_masks,
)
from jaxformer.ops.chunked_loss import project_to_vocabulary
from jaxformer.ops.dropout import dropout
from jaxformer.ops.kv_cache import KVCache, LayerCache
from jaxformer.ops.positions import encode_positions
from jaxformer.parallel.sharding import cut_like_batch


class AttentionWeights(NamedTuple):
    """Attention weights of all layers and heads, float32; rows over the keys sum to 1.

    Attributes:
      encoder: `[L, B, N, S, S]`.
      decoder: `[L, B, N, T, T]`, causal; `[L, B, N, T, cache length]` with a cache.
      cross: `[L, B, N, T, S]`, from the decoder to the encoder.
    """

    encoder: jax.Array | None
    decoder: jax.Array | None
    cross: jax.Array | None


class Transformer(nn.Module):
    """The whole model: embeddings, encoder, decoder, output projection.

    `logits = W_out Decoder(E_t[y] sqrt(D) + PE, Encoder(E_s[x] sqrt(D) + PE))` (paper 3); with tied
    embeddings `W_out = E_t^T` and, for a shared vocabulary, `E_s = E_t` (paper 3.4).

    Example:
      >>> model = Transformer(TransformerConfig.preset("tiny", vocab_size=100))
      >>> variables = model.init(jax.random.key(0), inputs, decoder_inputs)
      >>> logits = model.apply(variables, inputs, decoder_inputs)
    """

    config: TransformerConfig

    def setup(self):
        config = self.config

        def embedding(rows: int) -> nn.Embed:
            return nn.Embed(
                rows,
                config.d_model,
                dtype=jnp.dtype(config.dtype),
                param_dtype=jnp.dtype(config.param_dtype),
                embedding_init=nn.initializers.normal(stddev=config.d_model**-0.5),
            )

        if config.shares_vocabulary and config.tie_embeddings:
            self.token_embedding = embedding(config.vocab_size)
        else:
            self.source_embedding = embedding(config.vocab_size)
            self.target_embedding = embedding(config.output_vocab_size)
        if not config.tie_embeddings:
            self.output_projection = nn.Dense(
                config.output_vocab_size,
                use_bias=False,
                dtype=jnp.dtype(config.dtype),
                param_dtype=jnp.dtype(config.param_dtype),
                dot_general=functools.partial(
                    jax.lax.dot_general, preferred_element_type=jnp.float32
                ),
            )
        if config.positions == "learned":
            self.source_positions = embedding(config.max_length)
            self.target_positions = embedding(config.max_length)
        self.encoder = TransformerStack(config, config.num_encoder_layers)
        self.decoder = TransformerStack(config, config.num_decoder_layers, attends_encoder=True)

    def __call__(
        self,
        inputs: jax.Array,
        decoder_inputs: jax.Array,
        *,
        inputs_mask: jax.Array | None = None,
        inputs_lengths: jax.Array | None = None,
        inputs_segments: jax.Array | None = None,
        inputs_positions: jax.Array | None = None,
        targets_segments: jax.Array | None = None,
        targets_positions: jax.Array | None = None,
        deterministic: bool = True,
        return_attention: bool = False,
        project: bool = True,
    ):
        """Teacher-forced logits of every target position.

        Args:
          inputs: int32 `[B, S]`, source ids.
          decoder_inputs: int32 `[B, T]`, targets shifted right by `ops.losses.shift_right`.
          inputs_mask: bool `[B, S]`, True = a token; None: all are tokens.
          inputs_lengths: int32 `[B]`, the same where the padding is at the end of the rows, which
            fused attention kernels can use.
          inputs_segments: int32 `[B, S]` of packed rows, sentences from 1, 0 = padding.
          inputs_positions: int32 `[B, S]` of packed rows.
          targets_segments: int32 `[B, T]`.
          targets_positions: int32 `[B, T]`.
          deterministic: no dropout; else give `rngs={"dropout": key}` to `apply`.
          return_attention: also return `AttentionWeights`.
          project: False: the decoder's states `[B, T, D]` instead of the logits, which are their
            product with `output_table(params)`.

        Returns:
          Logits, float32 `[B, T, V]`, or the pair (logits, `AttentionWeights`).
        """
        modes = {"deterministic": deterministic, "return_attention": return_attention}
        encoded, encoder_weights = self.encode(
            inputs,
            inputs_mask=inputs_mask,
            inputs_lengths=inputs_lengths,
            inputs_segments=inputs_segments,
            inputs_positions=inputs_positions,
            **modes,
        )
        logits, _, weights = self.decode(
            decoder_inputs,
            encoded,
            inputs_mask=inputs_mask,
            inputs_lengths=inputs_lengths,
            inputs_segments=inputs_segments,
            targets_segments=targets_segments,
            targets_positions=targets_positions,
            project=project,
            **modes,
        )
        return (logits, weights._replace(encoder=encoder_weights)) if return_attention else logits

    def encode(
        self,
        inputs: jax.Array,
        *,
        inputs_mask: jax.Array | None = None,
        inputs_lengths: jax.Array | None = None,
        inputs_segments: jax.Array | None = None,
        inputs_positions: jax.Array | None = None,
        deterministic: bool = True,
        return_attention: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encode source ids; arguments as in `__call__`.

        Returns:
          `(encoded [B, S, D], weights [L, B, N, S, S] or None)`.
        """
        masks = model_masks(
            inputs_lengths=inputs_lengths, inputs_mask=inputs_mask, inputs_segments=inputs_segments
        )
        x, positions = self._embed("source", inputs, inputs_positions, 0, deterministic)
        x, outputs = self.encoder(
            x,
            LayerContext(masks.encoder, positions),
            deterministic=deterministic,
            return_weights=return_attention,
        )
        return x, outputs.self_weights

    def decode(
        self,
        decoder_inputs: jax.Array,
        encoded: jax.Array | None = None,
        *,
        inputs_mask: jax.Array | None = None,
        inputs_lengths: jax.Array | None = None,
        inputs_segments: jax.Array | None = None,
        targets_segments: jax.Array | None = None,
        targets_positions: jax.Array | None = None,
        cache: KVCache | None = None,
        deterministic: bool = True,
        return_attention: bool = False,
        project: bool = True,
    ) -> tuple[jax.Array, KVCache | None, AttentionWeights]:
        """Logits of T target positions: all at once, or the next T after those in `cache`.

        Args:
          decoder_inputs: int32 `[B, T]`; with a cache of W hypotheses a sentence `[B * W, T]`.
          encoded: `[B, S, D]`; not needed with a cache, which holds its keys and values.
          inputs_mask: bool `[B, S]`; not needed with a cache.
          inputs_lengths: int32 `[B]`; not needed with a cache.
          inputs_segments: int32 `[B, S]` of packed rows.
          targets_segments: int32 `[B, T]` of packed rows.
          targets_positions: int32 `[B, T]` of packed rows.
          cache: from `init_cache` or an earlier call.
          deterministic: no dropout.
          return_attention: also return the weights of both attentions.
          project: False: states `[B, T, D]` instead of logits.

        Returns:
          `(logits [B, T, V], new cache or None, AttentionWeights)`; the weights are None unless
          asked for.
        """
        if (targets_segments is None) != (inputs_segments is None):
            raise InputError("packed rows need both inputs_segments and targets_segments")
        length = decoder_inputs.shape[1]
        if cache is None:
            _, self_mask, cross_mask = model_masks(
                inputs_lengths=inputs_lengths,
                inputs_mask=inputs_mask,
                inputs_segments=inputs_segments,
                targets_segments=targets_segments,
            )
            caches, index, offset = None, None, 0
        else:
            self_mask = EVERYTHING
            cross_mask = AttentionMask(mask=cache.inputs_mask)
            caches = (cache.self_attention, cache.cross_attention)
            index = offset = cache.index
        x, positions = self._embed(
            "target", decoder_inputs, targets_positions, offset, deterministic
        )
        x, outputs = self.decoder(
            x,
            LayerContext(self_mask, positions, encoded, cross_mask, index),
            caches,
            deterministic=deterministic,
            return_weights=return_attention,
        )
        if cache is not None:
            cache = cache._replace(self_attention=outputs.cache, index=cache.index + length)
        weights = AttentionWeights(None, outputs.self_weights, outputs.cross_weights)
        return self._project(x) if project else x, cache, weights

    def output_table(self, params: dict) -> jax.Array:
        """The matrix `[V, D]` of the output projection in `params`, in the dtype of computation."""
        if not self.config.tie_embeddings:
            table = params["output_projection"]["kernel"].T
        elif self.config.shares_vocabulary:
            table = params["token_embedding"]["embedding"]
        else:
            table = params["target_embedding"]["embedding"]
        return table.astype(self.config.dtype)

    def init_cache(
        self,
        encoded: jax.Array,
        max_length: int,
        *,
        inputs_mask: jax.Array | None = None,
        num_hypotheses: int = 1,
    ) -> KVCache:
        """An empty cache for `max_length` target tokens, with cross-attention computed once.

        Args:
          encoded: `[B, S, D]`.
          max_length: rows of the self-attention cache, in tokens.
          inputs_mask: bool `[B, S]`; None: all are tokens.
          num_hypotheses: W, decoded side by side for each sentence.

        Raises:
          InputError: there are fewer learned positions than `max_length`.
        """
        config = self.config
        self._check_length(max_length)
        batch, source_length, _ = encoded.shape
        rows = batch * num_hypotheses
        shape = (rows, max_length, config.num_heads, config.head_dim)
        dtype = jnp.dtype(config.dtype)
        if config.scan_layers:
            shape = (rows, config.num_decoder_layers, *shape[1:])
            self_attention = LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
        else:
            self_attention = tuple(
                LayerCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
                for _ in range(config.num_decoder_layers)
            )
        if inputs_mask is None:
            inputs_mask = jnp.ones((batch, source_length), bool)
        return KVCache(
            self_attention,
            self.decoder.project_encoded(encoded),
            inputs_mask[:, None, None, :],
            jnp.zeros((), jnp.int32),
        )

    def _embed(self, side: str, ids, positions, offset, deterministic: bool):
        """Embeddings times sqrt(D) plus positions, with dropout (paper 3.4, 3.5, 5.4)."""
        config = self.config
        if config.shares_vocabulary and config.tie_embeddings:
            table = self.token_embedding
        else:
            table = self.source_embedding if side == "source" else self.target_embedding
        x = cut_like_batch(table(ids))
        x = x * jnp.asarray(math.sqrt(config.d_model), jnp.dtype(config.dtype))
        if positions is None:
            self._check_length(ids.shape[1])
            positions = jnp.arange(ids.shape[1], dtype=jnp.int32)[None] + offset
        if config.positions == "sinusoidal":
            encodings = encode_positions(positions, config.d_model)
            x = x + encodings.astype(x.dtype)
        elif config.positions == "learned":
            rows = self.source_positions if side == "source" else self.target_positions
            x = x + cut_like_batch(rows(positions))
        if not deterministic and config.dropout_rate > 0.0:
            x = dropout(x, config.dropout_rate, self.make_rng("dropout"))
        return x, positions

    def _check_length(self, length: int) -> None:
        """Refuse what has no learned position; a row that the table lacks would be NaN."""
        limit = self.config.position_limit
        if limit is not None and length > limit:
            raise InputError(
                f"{length} tokens are more than model.max_length={limit} learned positions; give "
                "fewer tokens or raise model.max_length"
            )

    def _project(self, x: jax.Array) -> jax.Array:
        """Logits in float32 whatever the dtype of x: those that loss and accuracy are made of."""
        config = self.config
        if not config.tie_embeddings:
            return self.output_projection(x)
        tied = self.token_embedding if config.shares_vocabulary else self.target_embedding
        return project_to_vocabulary(x, tied.embedding.astype(x.dtype))
