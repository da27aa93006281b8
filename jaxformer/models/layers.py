"""The feed-forward, and the layer made of it and of attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.model_config import TransformerConfig, is_gated
from jaxformer.models.affine import Dense, LayerNorm
from jaxformer.models.attention import MultiHeadAttention
from jaxformer.ops.attention_mask import EVERYTHING, AttentionMask
from jaxformer.ops.dropout import dropout
from jaxformer.ops.kv_cache import CrossAttentionCache, SelfAttentionCache

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
        if is_gated(self.activation):
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
      index: int32 scalar, columns of the cache that are written; the stack fills it in.
      starts: int32 `[B]`, columns of padding in each row of the cache; the stack fills it in.
    """

    self_mask: AttentionMask = EVERYTHING
    positions: jax.Array | None = None
    encoded: jax.Array | None = None
    cross_mask: AttentionMask = EVERYTHING
    index: jax.Array | None = None
    starts: jax.Array | None = None


class LayerCaches(NamedTuple):
    """The caches of a layer's attentions."""

    self_attention: SelfAttentionCache
    cross_attention: CrossAttentionCache | None = None


class LayerOutputs(NamedTuple):
    """What a layer gives besides its output; each may be None."""

    cache: SelfAttentionCache | None = None
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
        caches: LayerCaches | None = None,
        *,
        deterministic: bool = True,
        return_weights: bool = False,
    ) -> tuple[jax.Array, LayerOutputs]:
        """Map `[B, T, D]` to `[B, T, D]`."""
        self_cache, cross_cache = caches or (None, None)
        modes = {"deterministic": deterministic, "return_weights": return_weights}
        outputs = LayerOutputs()

        def attend_self(x):
            nonlocal outputs
            attended = self.self_attention(
                x,
                attention_mask=context.self_mask,
                positions=context.positions,
                cache=self_cache,
                index=context.index,
                starts=context.starts,
                **modes,
            )
            outputs = outputs._replace(cache=attended.cache, self_weights=attended.weights)
            return attended.out

        def attend_cross(x):
            nonlocal outputs
            attended = self.cross_attention(
                x,
                context.encoded,
                attention_mask=context.cross_mask,
                cache=cross_cache,
                **modes,
            )
            outputs = outputs._replace(cross_weights=attended.weights)
            return attended.out

        x = self._residual(x, attend_self, self.self_attention_norm, deterministic)
        if self.attends_encoder:
            x = self._residual(x, attend_cross, self.cross_attention_norm, deterministic)
        x = self._residual(
            x,
            lambda x: self.feed_forward(x, deterministic=deterministic),
            self.feed_forward_norm,
            deterministic,
        )
        return x, outputs

    def project_encoded(self, encoded: jax.Array) -> CrossAttentionCache:
        """Keys and values of the encoder's output `[B, S, D]` for this layer's cross-attention."""
        return self.cross_attention.project_context(encoded)

    def _residual(self, x, function, norm, deterministic: bool) -> jax.Array:
        out = function(norm(x) if self.config.norm == "pre" else x)
        if not deterministic and self.config.dropout_rate > 0.0:
            out = dropout(out, self.config.dropout_rate, self.make_rng("dropout"))
        return x + out if self.config.norm == "pre" else norm(x + out)
