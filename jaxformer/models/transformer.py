"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.models.embedding import (
    Embedded,
    check_positions,
    embed,
    embedding_table,
    output_projection,
    output_table,
    project,
)
from jaxformer.models.layers import LayerContext
from jaxformer.models.stack import TransformerStack
from jaxformer.ops.attention_mask import model_masks
from jaxformer.ops.kv_cache import KVCache


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


class EncoderOutput(NamedTuple):
    """What `Transformer.encode` returns.

    Attributes:
      states: `[B, S, D]`.
      attention: float32 `[L, B, N, S, S]`; None unless asked for.
    """

    states: jax.Array
    attention: jax.Array | None = None


class TransformerOutput(NamedTuple):
    """What a `Transformer` and its `decode` return.

    Attributes:
      logits: float32 `[B, T, V]`; None with `project=False`.
      states: `[B, T, D]`, of which the logits are made.
      attention: None unless asked for; of `decode` without the encoder's.
      cache: with the new tokens; None without a cache.
    """

    logits: jax.Array | None
    states: jax.Array
    attention: AttentionWeights | None = None
    cache: KVCache | None = None


class Transformer(nn.Module):
    """The whole model: embeddings, encoder, decoder, output projection.

    `logits = W_out Decoder(E_t[y] sqrt(D) + PE, Encoder(E_s[x] sqrt(D) + PE))` (paper 3); with tied
    embeddings `W_out = E_t^T` and, for a shared vocabulary, `E_s = E_t` (paper 3.4).

    Example:
      >>> model = Transformer(TransformerConfig.preset("tiny", vocab_size=100))
      >>> variables = model.init(jax.random.key(0), inputs, decoder_inputs)
      >>> logits = model.apply(variables, inputs, decoder_inputs).logits
    """

    config: TransformerConfig

    def setup(self):
        config = self.config
        if config.shares_vocabulary and config.tie_embeddings:
            self.token_embedding = embedding_table(config, config.vocab_size)
        else:
            self.source_embedding = embedding_table(config, config.vocab_size)
            self.target_embedding = embedding_table(config, config.output_vocab_size)
        if not config.tie_embeddings:
            self.output_projection = output_projection(config, config.output_vocab_size)
        if config.positions == "learned":
            self.source_positions = embedding_table(config, config.max_length)
            self.target_positions = embedding_table(config, config.max_length)
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
    ) -> TransformerOutput:
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
          project: False: no logits; they are the product of the states with
            `output_table(params)`.
        """
        modes = {"deterministic": deterministic, "return_attention": return_attention}
        encoded = self.encode(
            inputs,
            inputs_mask=inputs_mask,
            inputs_lengths=inputs_lengths,
            inputs_segments=inputs_segments,
            inputs_positions=inputs_positions,
            **modes,
        )
        output = self.decode(
            decoder_inputs,
            encoded.states,
            inputs_mask=inputs_mask,
            inputs_lengths=inputs_lengths,
            inputs_segments=inputs_segments,
            targets_segments=targets_segments,
            targets_positions=targets_positions,
            project=project,
            **modes,
        )
        if return_attention:
            attention = output.attention._replace(encoder=encoded.attention)
            output = output._replace(attention=attention)
        return output

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
    ) -> EncoderOutput:
        """Encode source ids; arguments as in `__call__`."""
        masks = model_masks(
            inputs_lengths=inputs_lengths, inputs_mask=inputs_mask, inputs_segments=inputs_segments
        )
        embedded = self._embed("source", inputs, inputs_positions, None, deterministic)
        output = self.encoder(
            embedded.states,
            LayerContext(masks.encoder, embedded.positions),
            deterministic=deterministic,
            return_weights=return_attention,
        )
        return EncoderOutput(output.states, output.self_weights)

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
    ) -> TransformerOutput:
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
          project: False: no logits.
        """
        if (targets_segments is None) != (inputs_segments is None):
            raise InputError("packed rows need both inputs_segments and targets_segments")
        masks = model_masks(
            inputs_lengths=inputs_lengths,
            inputs_mask=inputs_mask,
            inputs_segments=inputs_segments,
            targets_segments=targets_segments,
        )
        embedded = self._embed("target", decoder_inputs, targets_positions, cache, deterministic)
        output = self.decoder(
            embedded.states,
            LayerContext(masks.decoder, embedded.positions, encoded, masks.cross),
            cache,
            deterministic=deterministic,
            return_weights=return_attention,
        )
        attention = None
        if return_attention:
            attention = AttentionWeights(None, output.self_weights, output.cross_weights)
        logits = self._project(output.states) if project else None
        return TransformerOutput(logits, output.states, attention, output.cache)

    def output_table(self, params: dict) -> jax.Array:
        """The matrix `[V, D]` of the output projection in `params`, in the dtype of computation."""
        name = "token_embedding" if self.config.shares_vocabulary else "target_embedding"
        return output_table(self.config, params, name)

    def init_cache(
        self,
        encoded: jax.Array,
        max_length: int,
        *,
        inputs_mask: jax.Array | None = None,
        num_hypotheses: int = 1,
        starts: jax.Array | None = None,
        padding: int = 0,
    ) -> KVCache:
        """An empty cache for `max_length` target tokens, with cross-attention computed once.

        Args:
          encoded: `[B, S, D]`.
          max_length: tokens of the longest hypothesis.
          inputs_mask: bool `[B, S]`; None: all are tokens.
          num_hypotheses: W, decoded side by side for each sentence.
          starts: int32 `[B]`, columns of padding before the first token of each sentence, so that
            prompts of several lengths end in the same column; None: none.
          padding: the most of `starts`, for which the cache has columns besides `max_length`.

        Raises:
          InputError: there are fewer learned positions than `max_length`.
        """
        check_positions(self.config, max_length)
        return self.decoder.init_cache(
            encoded.shape[0] * num_hypotheses,
            max_length + padding,
            starts=None if starts is None else jnp.repeat(starts, num_hypotheses),
            encoded=encoded,
            inputs_mask=inputs_mask,
        )

    def _embed(self, side: str, ids, positions, cache, deterministic: bool) -> Embedded:
        config = self.config
        rows = None
        if config.positions == "learned":
            rows = self.source_positions if side == "source" else self.target_positions
        if config.shares_vocabulary and config.tie_embeddings:
            table = self.token_embedding
        else:
            table = self.source_embedding if side == "source" else self.target_embedding
        use_dropout = not deterministic and config.dropout_rate > 0.0
        return embed(
            config,
            ids,
            table,
            rows,
            positions=positions,
            cache=cache,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
        )

    def _project(self, states: jax.Array) -> jax.Array:
        config = self.config
        if not config.tie_embeddings:
            return project(states, projection=self.output_projection)
        tied = self.token_embedding if config.shares_vocabulary else self.target_embedding
        return project(states, tied=tied)
