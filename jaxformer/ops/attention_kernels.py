"""Attention by implementation: library kernels that compute the same as the reference, faster.

Layers call `attend`. A call that the chosen kernel does not support goes to the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxformer.config_sections import MESH_AXES
from jaxformer.ops.attention import check_heads, dot_product_attention
from jaxformer.ops.attention_choice import SPLASH_BLOCK, choose, current_backend
from jaxformer.ops.attention_mask import AttentionMask

# Mesh axes that shard the rows of a batch and the heads; see `jaxformer.parallel.sharding`.
*ROW_AXES, HEAD_AXIS = MESH_AXES


def reference_attention(query, key, value, attention_mask: AttentionMask) -> jax.Array:
    """`ops.attention.dot_product_attention` with the mask of `attention_mask`.

    Args:
      query, key, value, attention_mask: as for `attend`.

    Returns:
      `[B, T, N, H]` in the dtype of `value`.
    """
    mask = attention_mask.to_mask(query.shape[1], key.shape[1])
    return dot_product_attention(query, key, value, mask)


def xla_attention(query, key, value, attention_mask: AttentionMask) -> jax.Array:
    """JAX's own unfused attention; unlike the reference it scales the float32 scores.

    Args:
      query, key, value, attention_mask: as for `attend`.

    Returns:
      `[B, T, N, H]` in the dtype of `value`.
    """
    mask = attention_mask.to_mask(query.shape[1], key.shape[1])
    out = jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="xla")
    return out if mask is None else zero_fully_masked_queries(out, mask)


def zero_fully_masked_queries(out: jax.Array, mask: jax.Array) -> jax.Array:
    """`out` `[B, T, N, H]` with zeros for queries that may attend to no key."""
    sees = jnp.any(mask, axis=-1)  # [B, 1, T]
    return jnp.where(sees.swapaxes(1, 2)[..., None], out, 0)


def cudnn_attention(query, key, value, attention_mask: AttentionMask) -> jax.Array:
    """cuDNN's flash attention; padding is given as lengths, since a mask would become a bias.

    Args:
      query, key, value: as for `attend`, bfloat16 or float16.
      attention_mask: with `causal` and `key_lengths` only.

    Returns:
      `[B, T, N, H]` in the dtype of `value`.
    """
    lengths = attention_mask.key_lengths
    if lengths is not None:
        # A row without keys sees its first one with the value 0: its output is 0 without another
        # pass over it, and cuDNN 9.4 fails on a length of 0.
        some = (lengths > 0)[:, None, None, None].astype(value.dtype)
        value = jax.lax.dynamic_update_slice_in_dim(value, value[:, :1] * some, 0, axis=1)
        lengths = jnp.maximum(lengths, 1)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        is_causal=attention_mask.causal,
        key_value_seq_lengths=lengths,
        implementation="cudnn",
    )


def splash_attention(
    query, key, value, attention_mask: AttentionMask, *, interpret: bool = False
) -> jax.Array:
    """The TPU's flash attention with segments; padding becomes a segment that no query is in.

    Args:
      query, key, value, attention_mask: as for `attend`.
      interpret: run the kernel in Pallas's interpreter on any device, for tests.

    Returns:
      `[B, T, N, H]` in the dtype of `value`.
    """
    query_length, key_length = query.shape[1], key.shape[1]

    def run(query, key, value, segments):
        return _splash_rows(query, key, value, segments, attention_mask.causal, interpret)

    segments = _splash_segments(attention_mask, query.shape[0], query_length, key_length)
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.size > 1:  # XLA cannot shard a Pallas kernel by itself
        rows = tuple(axis for axis in ROW_AXES if axis in mesh.shape)
        if query.shape[0] % math.prod(mesh.shape[axis] for axis in rows):
            rows = ()
        parts = mesh.shape.get(HEAD_AXIS)
        arrays = PartitionSpec(
            rows, None, HEAD_AXIS if parts and query.shape[2] % parts == 0 else None
        )
        run = jax.shard_map(
            run,
            in_specs=(arrays, arrays, arrays, PartitionSpec(rows)),
            out_specs=arrays,
            check_vma=False,  # Pallas calls do not say along which axes their results vary
        )
    out = run(query, key, value, segments)
    if attention_mask.key_lengths is None and attention_mask.query_segments is None:
        return out
    return zero_fully_masked_queries(out, attention_mask.to_mask(query_length, key_length))


def _splash_segments(attention_mask: AttentionMask, batch: int, query_length: int, key_length: int):
    """Segment ids `([B, T], [B, S])`, equal where a query sees a key; None: none are needed."""
    lengths, segments = attention_mask.key_lengths, attention_mask.query_segments
    padded = key_length % SPLASH_BLOCK and not (
        attention_mask.causal and query_length <= key_length
    )
    if lengths is None and segments is None and not padded:
        return None
    if segments is None:
        query_ids = jnp.ones((batch, query_length), jnp.int32)
        key_ids = jnp.ones((batch, key_length), jnp.int32)
    else:
        query_ids, key_ids = segments, attention_mask.key_segments
    seen = key_ids != 0
    if lengths is not None:
        seen &= jnp.arange(key_length, dtype=jnp.int32)[None] < lengths[:, None]
    return query_ids, jnp.where(seen, key_ids, -1)


def _splash_rows(query, key, value, segments, causal: bool, interpret: bool) -> jax.Array:
    """Splash attention of the rows and heads of one device, padded to whole blocks."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    _, length, heads, head_dim = query.shape
    blocks = [-(-x.shape[1] // SPLASH_BLOCK) for x in (query, key)]
    lengths = [count * SPLASH_BLOCK for count in blocks]

    def head_major(x, whole: int):  # [B, T, N, H] -> [B, N, T, H]
        return jnp.pad(x, ((0, 0), (0, whole - x.shape[1]), (0, 0), (0, 0))).swapaxes(1, 2)

    if segments is not None:
        segments = splash.SegmentIds(
            *(
                jnp.pad(ids, ((0, 0), (0, whole - ids.shape[1])), constant_values=-side)
                for side, (ids, whole) in enumerate(zip(segments, lengths, strict=True))
            )
        )
    # Long blocks keep the matrix unit busy; each must divide its length.
    block_q, block_kv = (
        SPLASH_BLOCK * next(n for n in (4, 3, 2, 1) if count % n == 0) for count in blocks
    )
    mask = (splash.CausalMask if causal else splash.FullMask)(tuple(lengths))
    kernel = splash.make_splash_mha_single_device(
        splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(
            block_q=block_q,
            block_kv=block_kv,
            block_q_dkv=block_q,
            block_kv_dkv=block_kv,
            block_q_dq=block_q,
            block_kv_dq=block_kv,
        ),
        interpret=interpret,
    )
    scaled = query * jnp.asarray(1.0 / math.sqrt(head_dim), query.dtype)
    out = jax.vmap(kernel)(
        head_major(scaled, lengths[0]),
        head_major(key, lengths[1]),
        head_major(value, lengths[1]),
        segments,
    )
    return out.swapaxes(1, 2)[:, :length]


Kernel = Callable[[jax.Array, jax.Array, jax.Array, AttentionMask], jax.Array]
KERNELS: dict[str, Kernel] = {
    "reference": reference_attention,
    "xla": xla_attention,
    "cudnn": cudnn_attention,
    "splash": splash_attention,
}


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    attention_mask: AttentionMask,
    implementation: str = "auto",
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
    return_weights: bool = False,
):
    """`softmax(Q K^T / sqrt(H)) V` (paper 3.2.1, equation 1) by the chosen implementation.

    A query that may attend to no key at all gives zeros.

    Args:
      query: `[B, T, N, H]`.
      key: `[B, S, N, H]`.
      value: `[B, S, N, H]`.
      attention_mask: which keys each query may attend to.
      implementation: auto, reference, xla, cudnn or splash; falls back to the reference.
      dropout_rate: of the attention weights; needs `dropout_key`.
      dropout_key: a `jax.random.key`; None: no dropout.
      return_weights: also return the weights, before dropout.

    Returns:
      `[B, T, N, H]` in the dtype of `value`; with `return_weights` a pair with float32
      `[B, N, T, S]`.
    """
    check_heads(query, key, value)
    attention_mask.check(query.shape, key.shape[1])
    choice = choose(
        implementation,
        current_backend(),
        query,
        key,
        attention_mask,
        dropout=dropout_key is not None,
        return_weights=return_weights,
    )
    if choice.implementation != "reference":
        return KERNELS[choice.implementation](query, key, value, attention_mask)
    return dot_product_attention(
        query,
        key,
        value,
        attention_mask.to_mask(query.shape[1], key.shape[1]),
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        return_weights=return_weights,
    )
