"""Between ids and states: what goes into a stack, and the logits that come out of it.

Plain functions, called by the module that owns the tables: a module of its own would give the
parameters other paths, and with them other initial values and other dropout.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.ops.chunked_loss import project_to_vocabulary
from jaxformer.ops.dropout import dropout
from jaxformer.ops.kv_cache import KVCache, token_positions
from jaxformer.ops.positions import encode_positions
from jaxformer.parallel.sharding import shard_like_batch


class Embedded(NamedTuple):
    """What enters a stack.

    Attributes:
      states: `[B, T, D]`.
      positions: int32 `[B, T]` or `[1, T]`, which rotary attention needs.
    """

    states: jax.Array
    positions: jax.Array


def embedding_table(config: TransformerConfig, rows: int) -> nn.Embed:
    """A table `[rows, D]`, drawn from a normal distribution of standard deviation `D^-0.5`."""
    return nn.Embed(
        rows,
        config.d_model,
        dtype=jnp.dtype(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        embedding_init=nn.initializers.normal(stddev=config.d_model**-0.5),
    )


def output_projection(config: TransformerConfig, vocab_size: int) -> nn.Dense:
    """The projection `[D, V]` to float32 logits, where it is not tied to an embedding table."""
    return nn.Dense(
        vocab_size,
        use_bias=False,
        dtype=jnp.dtype(config.dtype),
        param_dtype=jnp.dtype(config.param_dtype),
        dot_general=functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32),
    )


def embed(
    config: TransformerConfig,
    ids: jax.Array,
    table: nn.Embed,
    position_table: nn.Embed | None = None,
    *,
    positions: jax.Array | None = None,
    cache: KVCache | None = None,
    dropout_key: jax.Array | None = None,
) -> Embedded:
    """`Dropout(E[ids] sqrt(D) + PE[positions])` (paper 3.4, 3.5, 5.4).

    Rotary positions are not added here; attention turns its queries and keys by them.

    Args:
      config: kind of positions, dtype and rate of dropout.
      ids: int32 `[B, T]`.
      table: of the vocabulary.
      position_table: of learned positions, else None.
      positions: int32 `[B, T]` of packed rows; None: 0 .. T - 1, or those after `cache`.
      cache: what was read before.
      dropout_key: None: no dropout.

    Raises:
      InputError: the row is longer than the table of learned positions.
    """
    x = shard_like_batch(table(ids))
    x = x * jnp.asarray(math.sqrt(config.d_model), jnp.dtype(config.dtype))
    if positions is None:
        check_positions(config, ids.shape[1])
        index, starts = (0, None) if cache is None else (cache.index, cache.starts)
        positions = token_positions(index, ids.shape[1], starts)
    if config.positions == "sinusoidal":
        encodings = encode_positions(positions, config.d_model)
        x = x + encodings.astype(x.dtype)
    elif config.positions == "learned":
        if cache is not None and cache.starts is not None:
            # A sentence that has ended waits for others with more padding, and runs off the table.
            positions = jnp.minimum(positions, config.max_length - 1)
        x = x + shard_like_batch(position_table(positions))
    if dropout_key is not None:
        x = dropout(x, config.dropout_rate, dropout_key)
    return Embedded(x, positions)


def check_positions(config: TransformerConfig, length: int) -> None:
    """Refuse what has no learned position; a row that the table lacks would be NaN.

    Args:
      config: of the model.
      length: tokens of a sequence.

    Raises:
      InputError: there are fewer positions.
    """
    limit = config.position_limit
    if limit is not None and length > limit:
        raise InputError(
            f"{length} tokens are more than model.max_length={limit} learned positions; give "
            "fewer tokens or raise model.max_length"
        )


def project(
    states: jax.Array, *, projection: nn.Dense | None = None, tied: nn.Embed | None = None
) -> jax.Array:
    """Logits in float32 whatever the dtype of the states: those that loss and accuracy are made of.

    Args:
      states: `[..., D]`.
      projection: from `output_projection`.
      tied: the embedding table, if there is no `projection`.

    Returns:
      float32 `[..., V]`.
    """
    if projection is not None:
        return projection(states)
    return project_to_vocabulary(states, tied.embedding.astype(states.dtype))


def output_table(config: TransformerConfig, params: dict, tied_name: str) -> jax.Array:
    """The matrix `[V, D]` that `project` multiplies by, in the dtype of computation.

    Args:
      config: of the model.
      params: of the module that owns the tables.
      tied_name: of the embedding table that is the output projection if they are tied.
    """
    if config.tie_embeddings:
        table = params[tied_name]["embedding"]
    else:
        table = params["output_projection"]["kernel"].T
    return table.astype(config.dtype)
