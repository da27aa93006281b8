"""Multi-head attention, without a cache and with either kind of cache."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.models.affine import Dense, glorot_uniform
from jaxformer.ops.attention_kernels import attend
from jaxformer.ops.attention_mask import EVERYTHING, AttentionMask
from jaxformer.ops.kv_cache import (
    CrossAttentionCache,
    SelfAttentionCache,
    cache_mask,
    token_positions,
    write_cache,
)
from jaxformer.ops.masks import combine_masks
from jaxformer.ops.positions import apply_rotary

# Query, key and value are drawn as parts of one [D, 3D] matrix, whose Glorot range is narrower.
query_key_value_init = nn.initializers.variance_scaling(0.5, "fan_avg", "uniform")


class AttentionOutput(NamedTuple):
    """What an attention returns.

    Attributes:
      out: `[B, T, D]`.
      cache: the given one, with what this call added to it; None without a cache.
      weights: float32 `[B, N, T, S]`, rows over the keys sum to 1; None unless asked for.
    """

    out: jax.Array
    cache: SelfAttentionCache | CrossAttentionCache | None = None
    weights: jax.Array | None = None


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
        cache: SelfAttentionCache | CrossAttentionCache | None = None,
        index: jax.Array | None = None,
        starts: jax.Array | None = None,
        deterministic: bool = True,
        return_weights: bool = False,
    ) -> AttentionOutput:
        """Attend from `inputs` to `context`, or to `inputs` themselves.

        Args:
          inputs: `[B, T, D]`.
          context: `[B, S, D]` of cross-attention; None: self-attention.
          mask: bool, broadcastable to `[B, 1, T, S]`, True = may attend.
          attention_mask: the same as fields, which fused kernels can use; both must allow a
            key.
          positions: int32 `[B, T]` or `[1, T]`, for rotary; None: 0 .. T - 1, or those of the
            cache's next columns.
          cache: a `SelfAttentionCache`: attend to all its tokens, after the T new ones are written
            at `index`. A `CrossAttentionCache`: attend to its keys and values, where W rows of
            `inputs` in a row, the hypotheses of a sentence, share one of its rows.
          index: int32 scalar, columns of a `SelfAttentionCache` that are written.
          starts: int32 `[B]`, columns of padding before the tokens of each row of a
            `SelfAttentionCache`; None: none.
          deterministic: no dropout.
          return_weights: also return the weights.

        Raises:
          InputError: a `SelfAttentionCache` comes without its `index`.
        """
        batch, length, _ = inputs.shape
        query = self._split_heads(self.query(inputs))
        shared_rows = 1
        if isinstance(cache, CrossAttentionCache):
            key, value = cache
            shared_rows = batch // key.shape[0]
            query = query.reshape(key.shape[0], shared_rows * length, *query.shape[2:])
        else:
            if cache is not None and index is None:
                raise InputError("index=None: a SelfAttentionCache needs its number of columns")
            key, value = self._project(inputs if context is None else context)
            if self.rotary:
                if positions is None:
                    positions = token_positions(0 if index is None else index, length, starts)
                query, key = apply_rotary(query, positions), apply_rotary(key, positions)
            if cache is not None:
                cache = write_cache(cache, key, value, index)
                seen = cache_mask(index, length, cache.key.shape[1], starts)
                mask = combine_masks(mask, seen)
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
        if weights is not None and shared_rows > 1:
            rows, heads, _, keys = weights.shape
            weights = weights.reshape(rows, heads, shared_rows, length, keys)
            weights = weights.swapaxes(1, 2).reshape(batch, heads, length, keys)
        return AttentionOutput(out, cache, weights)

    def project_context(self, context: jax.Array) -> CrossAttentionCache:
        """Keys and values of `context` `[B, S, D]`: each `[B, S, N, H]`."""
        return CrossAttentionCache(*self._project(context))

    def _project(self, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._split_heads(self.key(context)), self._split_heads(self.value(context))

    def _split_heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], self.num_heads, self.d_model // self.num_heads)
