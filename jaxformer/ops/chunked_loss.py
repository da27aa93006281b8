"""Vocabulary projection and loss by chunks of tokens, so that all logits never exist at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxformer.ops.argument_checks import check_same_dtype, check_shape
from jaxformer.ops.differentiation import plain_derivatives_wanted, with_backward_pass

# Bytes of float32 logits in a chunk, by platform: what fits the caches of a CPU; elsewhere enough
# that adding to the table's gradient, once per chunk, costs little compared to the logits.
CHUNK_BYTES = {"cpu": 20 * 2**20}
ACCELERATOR_CHUNK_BYTES = 2**30


def automatic_chunk_tokens(vocab_size: int, d_model: int, platform: str) -> int:
    """Tokens in a chunk.

    At least `2 d_model`: each chunk adds to the gradient of the whole table, which must stay cheap
    compared to the chunk's products.

    Args:
      vocab_size: V.
      d_model: D.
      platform: as JAX names it, such as `cpu`.

    Returns:
      A power of two, or `2 d_model` if that is larger.

    Raises:
      ValueError: a size is not positive.
    """
    for name, size in (("vocab_size", vocab_size), ("d_model", d_model)):
        if size < 1:
            raise ValueError(f"{name}={size}; give a size of at least 1")
    tokens = CHUNK_BYTES.get(platform, ACCELERATOR_CHUNK_BYTES) // (4 * vocab_size)
    return max(1 << max(tokens, 1).bit_length() - 1, 2 * d_model)


def project_to_vocabulary(hidden: jax.Array, table: jax.Array) -> jax.Array:
    """Logits `hidden table^T` in float32, whatever the dtype of the arguments.

    The backward pass casts the gradient to the dtype of `hidden`. Forward mode: inside
    `jaxformer.ops.differentiation.plain_derivatives`.

    Args:
      hidden: `[..., D]`.
      table: `[V, D]`, of the dtype of `hidden`.

    Returns:
      float32 `[..., V]`.

    Raises:
      ValueError: `table` is not `[V, D]`, or of another dtype.
    """
    check_shape("table", table, (None, hidden.shape[-1]), "[V, D]")
    check_same_dtype("table", table, "hidden", hidden)
    return _project(hidden, table)


def _logits(hidden, table):
    return jnp.einsum("...D,VD->...V", hidden, table, preferred_element_type=jnp.float32)


def _project_forward(hidden, table):
    return _logits(hidden, table), (hidden, table)


def _project_backward(saved, gradient):
    hidden, table = saved
    gradient = gradient.astype(hidden.dtype)
    of_table = jnp.einsum("...V,...D->VD", gradient, hidden, preferred_element_type=jnp.float32)
    return jnp.einsum("...V,VD->...D", gradient, table), of_table.astype(table.dtype)


_project = with_backward_pass(_logits, _project_forward, _project_backward)


def chunked_loss_sums(
    loss_fn: Callable[[jax.Array, Any], dict[str, jax.Array]],
    hidden: jax.Array,
    table: jax.Array,
    arguments: dict[str, jax.Array],
    *,
    chunk_tokens: int,
    mesh: Mesh | None = None,
    batch_axes: tuple[str, ...] = (),
) -> dict[str, jax.Array]:
    """Sums over tokens of a loss on `logits = hidden table^T`, computed chunk by chunk.

    The gradient is computed together with the sums, so each chunk's logits exist only once:
    `chunk_tokens * V` floats instead of `B T V`. Tokens of weight 0 are moved to the end, and
    chunks that hold only such tokens are not computed.

    Forward mode: inside `jaxformer.ops.differentiation.plain_derivatives`, where all logits exist
    at once and every sum has a gradient. Outside, the gradient has a forward derivative
    (`jax.hessian`) but no backward one, since the number of chunks is unknown when traced.

    Args:
      loss_fn: `(logits [C, ..., V] float32, arguments [C]) -> sums`, float32 scalars by name; the
        sum `loss` is differentiated. Tokens of weight 0 must add nothing.
      hidden: `[B, T, ..., D]`, the decoder's output.
      table: `[V, D]`, the output embedding, in the dtype of `hidden`.
      arguments: `[B, T]` arrays for `loss_fn`, `weights` among them.
      chunk_tokens: C, tokens in a chunk on each device.
      mesh: shards B over `batch_axes`; each device then processes its own tokens, and gradients are
        summed over devices once, not once per chunk.
      batch_axes: names of mesh axes.

    Returns:
      The sums. Only `loss` has a gradient, to `hidden` and `table`.

    Raises:
      ValueError: a shape or dtype is wrong, `weights` is missing, there is no token, or
        `chunk_tokens` is not a positive integer.
    """
    _check_arguments(hidden, table, arguments, chunk_tokens)
    if plain_derivatives_wanted():
        return _sums_at_once(loss_fn, hidden, table, arguments)

    def local_sums(hidden, table, arguments):
        return _run_chunks(loss_fn, chunk_tokens, hidden, table, arguments, with_gradient=False)

    def local_gradients(hidden, table, arguments):
        return _run_chunks(loss_fn, chunk_tokens, hidden, table, arguments, with_gradient=True)

    if mesh is not None and batch_axes:
        rows, whole = PartitionSpec(batch_axes), PartitionSpec()
        settings = {
            "mesh": mesh,
            "in_specs": (rows, whole, rows),
            "axis_names": set(batch_axes),
            "check_vma": False,
        }

        def add_up(tree):
            return jax.lax.psum(tree, batch_axes)

        def summed_gradients(*operands):
            sums, (of_hidden, of_table) = local_gradients(*operands)
            return add_up(sums), (of_hidden, add_up(of_table))

        sums_fn = jax.shard_map(lambda *x: add_up(local_sums(*x)), out_specs=whole, **settings)
        gradient_fn = jax.shard_map(summed_gradients, out_specs=(whole, (rows, whole)), **settings)
    else:
        sums_fn, gradient_fn = local_sums, local_gradients

    @jax.custom_vjp
    def run(hidden, table, arguments):
        return sums_fn(hidden, table, arguments)

    def backward(gradients, cotangents):
        of_hidden, of_table = (g * cotangents["loss"].astype(g.dtype) for g in gradients)
        return of_hidden, of_table.astype(table.dtype), None

    run.defvjp(gradient_fn, backward)
    return run(hidden, table, arguments)


def _check_arguments(hidden, table, arguments: dict, chunk_tokens: int) -> None:
    if not isinstance(chunk_tokens, int) or chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens!r}; give an integer of at least 1")
    if hidden.ndim < 3 or hidden.size == 0:
        raise ValueError(f"hidden has shape {hidden.shape}; give [B, T, ..., D], not empty")
    check_shape("table", table, (None, hidden.shape[-1]), "[V, D]")
    check_same_dtype("table", table, "hidden", hidden)
    if "weights" not in arguments:
        raise ValueError(f"arguments={sorted(arguments)} lack 'weights'; give 1 for each token")
    for name, array in arguments.items():
        check_shape(f"arguments[{name!r}]", array, hidden.shape[:2], "[B, T]")


def _sums_at_once(loss_fn, hidden, table, arguments: dict):
    """The sums without the loop, which has no reverse-mode derivative."""
    logits = project_to_vocabulary(hidden.reshape(-1, *hidden.shape[2:]), table)
    return loss_fn(logits, {name: value.reshape(-1) for name, value in arguments.items()})


def _run_chunks(loss_fn, chunk_tokens: int, hidden, table, arguments, *, with_gradient: bool):
    """Sums of one device's tokens, optionally with their gradients to `hidden` and `table`.

    The gradient to `table` is float32, because it is yet to be summed over devices.
    """
    tokens = arguments["weights"].size
    chunk = min(chunk_tokens, tokens)
    room = -(-tokens // chunk) * chunk
    shape = hidden.shape

    def in_order(x, trailing):
        x = jnp.pad(x.reshape(tokens, *trailing), [(0, room - tokens)] + [(0, 0)] * len(trailing))
        return x[order]

    counted = jnp.pad(arguments["weights"].reshape(-1) != 0, (0, room - tokens))
    order = jnp.argsort(~counted, stable=True)
    hidden = in_order(hidden, shape[2:])
    arguments = {name: in_order(value, ()) for name, value in arguments.items()}

    def chunk_sums(hidden, table, arguments):
        sums = loss_fn(project_to_vocabulary(hidden, table), arguments)
        return sums["loss"], sums

    def slice_of(x, index):
        return jax.lax.dynamic_slice_in_dim(x, index * chunk, chunk)

    def add_chunk(index, carry):
        total, gradients = carry
        chunks = {name: slice_of(x, index) for name, x in arguments.items()}
        operands = slice_of(hidden, index), table, chunks
        if with_gradient:
            (_, sums), new = jax.value_and_grad(chunk_sums, (0, 1), has_aux=True)(*operands)
            of_hidden = jax.lax.dynamic_update_slice_in_dim(gradients[0], new[0], index * chunk, 0)
            gradients = of_hidden, gradients[1] + new[1].astype(jnp.float32)
        else:
            sums = chunk_sums(*operands)[1]
        return jax.tree.map(jnp.add, total, sums), gradients

    first = {name: x[:chunk] for name, x in arguments.items()}
    zeros = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype),
        jax.eval_shape(chunk_sums, hidden[:chunk], table, first)[1],
    )
    gradients = ()
    if with_gradient:
        gradients = jnp.zeros_like(hidden), jnp.zeros(table.shape, jnp.float32)
    chunks = (jnp.sum(counted) + chunk - 1) // chunk
    sums, gradients = jax.lax.fori_loop(0, chunks, add_chunk, (zeros, gradients))
    if not with_gradient:
        return sums
    of_hidden = gradients[0][jnp.argsort(order)][:tokens].reshape(shape)
    return sums, (of_hidden, gradients[1])
