"""The parts of the Transformer: attention, feed-forward, embedding, and the layer made of them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.models.affine import Dense, LayerNorm, glorot_uniform
from jaxformer.ops.attention_kernels import attend
from jaxformer.ops.attention_mask import EVERYTHING, AttentionMask
from jaxformer.ops.dropout import dropout
from jaxformer.ops.kv_cache import LayerCache, cache_mask, write_cache
from jaxformer.ops.masks import combine_masks
from jaxformer.ops.positions import apply_rotary

# Query, key and value are drawn as parts of one [D, 3D] matrix, whose Glorot range is narrower.
query_key_value_init = nn.initializers.variance_scaling(0.5, "fan_avg", "uniform")


class MultiHeadAttention(nn.Module):
    """`Concat(head_1, ..., head_N) W_O`, `head_i = Attention(Q W_Q, K W_K, V W_V)` (paper 3.2.2).

    Attributes:
      num_heads: N, a divisor of `d_model`; head_dim H = D / N.
      d_model: D, width of inputs and output.
      use_bias: biases on the four projections.
      rotary: turn queries and keys by their positions (self-attention only).
      dropout_rate: of the attention weights; random stream `dropout`.
      implementation: auto, reference, xla, cudnn or splash; see `ops.attention_kernels`.
      dtype: of the computation.
      param_dtype: of the parameters.
    """

    num_heads: int
    d_model: int
    use_bias: bool = False
    rotary: bool = False
    dropout_rate: float = 0.0
    implementation: str = "auto"
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self):
        if self.d_model % self.num_heads:
            raise InputError(
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}"
            )

        def projection(kernel_init) -> Dense:
            return Dense(
                self.d_model,
                use_bias=self.use_bias,
                kernel_init=kernel_init,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
            )

        self.query, self.key, self.value = (projection(query_key_value_init) for _ in range(3))
        self.out = projection(glorot_uniform)

    def __call__(
        self,
        inputs: jax.Array,
        context: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        attention_mask: AttentionMask = EVERYTHING,
        positions: jax.Array | None = None,
        cache: LayerCache | None = None,
        index: jax.Array | None = None,
        deterministic: bool = True,
        return_weights: bool = False,
    ):
        """Attend from `inputs` to `context`, or to `inputs` themselves.

        Args:
          inputs: `[B, T, D]`.
          context: `[B, S, D]` of cross-attention; None: self-attention.
          mask: bool, broadcastable to `[B, 1, T, S]`, True = may attend.
          attention_mask: the same as fields, which fused kernels can use; both must allow a
            key.
          positions: int32 `[B, T]` or `[1, T]`, for rotary; None: 0 .. T - 1.
          cache: with `index`: self-attention over all cached tokens; T new ones are written at
            `index` first. Without `index`: cross-attention to ready keys and values `[B / W, S, N,
            H]`, where W hypotheses of a sentence share one row.
          index: int32 scalar.
          deterministic: no dropout.
          return_weights: also return `[B, N, T, S]`.

        Returns:
          `(out [B, T, D], cache or None, weights or None)`.
        """
        batch, length, _ = inputs.shape
        query = self._split_heads(self.query(inputs))
        shared_rows = 1
        if cache is not None and index is None:
            key, value = cache
            shared_rows = batch // key.shape[0]
            query = query.reshape(key.shape[0], shared_rows * length, *query.shape[2:])
        else:
            key, value = self.project_context(inputs if context is None else context)
            if self.rotary:
                if positions is None:
                    positions = jnp.arange(length, dtype=jnp.int32)[None]
                query, key = apply_rotary(query, positions), apply_rotary(key, positions)
            if cache is not None:
                cache = write_cache(cache, key, value, index)
                mask = combine_masks(mask, cache_mask(index, length, cache.key.shape[1]))
                key, value = cache
        if mask is not None:
            attention_mask = dataclasses.replace(
                attention_mask, mask=combine_masks(mask, attention_mask.mask)
            )
        use_dropout = not deterministic and self.dropout_rate > 0.0
        attended = attend(
            query,
            key.astype(query.dtype),
            value.astype(query.dtype),
            attention_mask=attention_mask,
            implementation=self.implementation,
            dropout_rate=self.dropout_rate,
            dropout_key=self.make_rng("dropout") if use_dropout else None,
            return_weights=return_weights,
        )
        out, weights = attended if return_weights else (attended, None)
        out = self.out(out.reshape(batch, length, self.d_model))
        if weights is None:
            return out, cache, None
        if shared_rows > 1:
            rows, heads, _, keys = weights.shape
            weights = weights.reshape(rows, heads, shared_rows, length, keys)
            weights = weights.swapaxes(1, 2).reshape(batch, heads, length, keys)
        return out, cache, weights

    def project_context(self, context: jax.Array) -> LayerCache:
        """Keys and values of `context` `[B, S, D]`: each `[B, S, N, H]`."""
        return LayerCache(
            self._split_heads(self.key(context)), self._split_heads(self.value(context))
        )

    def _split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, self.d_model // self.num_heads)


ACTIVATION_FUNCTIONS = {
    "relu": nn.relu,
    "gelu": nn.gelu,
    "swish": nn.swish,
    "reglu": nn.relu,
    "geglu": nn.gelu,
    "swiglu": nn.swish,
}


class FeedForward(nn.Module):
    """`max(0, x W_1 + b_1) W_2 + b_2` at each position (paper 3.3), or with another activation.

    The gated forms compute `(act(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2` (Shazeer 2020); gelu is
    the tanh form.

    Attributes:
      d_ff: F, the inner width.
      activation: relu, gelu, swish, reglu, geglu or swiglu.
      dropout_rate: on the inner activations; random stream `dropout`.
      dtype: of the computation.
      param_dtype: of the parameters.
    """

    d_ff: int
    activation: str = "relu"
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Map `[B, T, D]` to `[B, T, D]`."""

        def affine(name: str, features: int, values: jax.Array) -> jax.Array:
            return Dense(
                features,
                dtype=self.dtype,
                param_dtype=self.param_dtype,
                name=name,
            )(values)

        activate = ACTIVATION_FUNCTIONS[self.activation]
        hidden = affine("inner", self.d_ff, x)
        if self.activation.endswith("glu"):
            hidden = activate(affine("gate", self.d_ff, x)) * hidden
        else:
            hidden = activate(hidden)
        if not deterministic and self.dropout_rate > 0.0:
            hidden = dropout(hidden, self.dropout_rate, self.make_rng("dropout"))
        return affine("outer", x.shape[-1], hidden)


class LayerContext(NamedTuple):
    """What the layers of a stack share besides their input; each may be None.

    Attributes:
      self_mask: what self-attention may see; a cache adds its own mask.
      positions: int32 `[B, T]` or `[1, T]`.
      encoded: `[B, S, D]`, the encoder's output, for a decoder without a cache.
      cross_mask: what cross-attention may see.
      index: int32 scalar, tokens in the cache so far.
    """

    self_mask: AttentionMask = EVERYTHING
    positions: jax.Array | None = None
    encoded: jax.Array | None = None
    cross_mask: AttentionMask = EVERYTHING
    index: jax.Array | None = None


class LayerOutputs(NamedTuple):
    """What a layer gives besides its output; each may be None."""

    cache: LayerCache | None = None
    self_weights: jax.Array | None = None
    cross_weights: jax.Array | None = None


class TransformerLayer(nn.Module):
    """Self-attention, cross-attention in a decoder, feed-forward; each in a residual with a norm.

    `norm="post"`: `x = LayerNorm(x + Dropout(f(x)))`, the paper (3.1, 5.4).
    `norm="pre"`: `x = x + Dropout(f(LayerNorm(x)))`.
    """

    config: TransformerConfig
    attends_encoder: bool = False

    def setup(self):
        config = self.config
        dtypes = {"dtype": jnp.dtype(config.dtype), "param_dtype": jnp.dtype(config.param_dtype)}

        def attention(rotary: bool) -> MultiHeadAttention:
            return MultiHeadAttention(
                num_heads=config.num_heads,
                d_model=config.d_model,
                use_bias=config.attention_bias,
                rotary=rotary,
                dropout_rate=config.attention_dropout_rate,
                implementation=config.attention_implementation,
                **dtypes,
            )

        self.self_attention = attention(rotary=config.positions == "rotary")
        self.self_attention_norm = LayerNorm(**dtypes)
        if self.attends_encoder:
            self.cross_attention = attention(rotary=False)
            self.cross_attention_norm = LayerNorm(**dtypes)
        self.feed_forward = FeedForward(
            d_ff=config.d_ff,
            activation=config.activation,
            dropout_rate=config.activation_dropout_rate,
            **dtypes,
        )
        self.feed_forward_norm = LayerNorm(**dtypes)

    def __call__(
        self,
        x: jax.Array,
        context: LayerContext,
        cache: tuple[LayerCache, LayerCache] | None = None,
        *,
        deterministic: bool = True,
        return_weights: bool = False,
    ) -> tuple[jax.Array, LayerOutputs]:
        """Map `[B, T, D]` to `[B, T, D]`; `cache` is the pair (self-attention, cross-attention)."""
        self_cache, cross_cache = cache or (None, None)
        modes = {"deterministic": deterministic, "return_weights": return_weights}
        weights: dict[str, jax.Array | None] = {"self": None, "cross": None}

        def attend_self(x):
            nonlocal self_cache
            out, self_cache, weights["self"] = self.self_attention(
                x,
                attention_mask=context.self_mask,
                positions=context.positions,
                cache=self_cache,
                index=context.index,
                **modes,
            )
            return out

        def attend_cross(x):
            out, _, weights["cross"] = self.cross_attention(
                x,
                context.encoded,
                attention_mask=context.cross_mask,
                cache=cross_cache,
                **modes,
            )
            return out

        x = self._residual(x, attend_self, self.self_attention_norm, deterministic)
        if self.attends_encoder:
            x = self._residual(x, attend_cross, self.cross_attention_norm, deterministic)
        x = self._residual(
            x,
            lambda x: self.feed_forward(x, deterministic=deterministic),
            self.feed_forward_norm,
            deterministic,
        )
        return x, LayerOutputs(self_cache, weights["self"], weights["cross"])

    def project_encoded(self, encoded: jax.Array) -> LayerCache:
        """Keys and values of the encoder's output `[B, S, D]` for this layer's cross-attention."""
        return self.cross_attention.project_context(encoded)

    def _residual(self, x, function, norm, deterministic: bool) -> jax.Array:
        out = function(norm(x) if self.config.norm == "pre" else x)
        if not deterministic and self.config.dropout_rate > 0.0:
            out = dropout(out, self.config.dropout_rate, self.make_rng("dropout"))
        return x + out if self.config.norm == "pre" else norm(x + out)
