"""What the engine refuses: a cache, prompts or a step that do not fit the search."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.decoding.prompts import check_prompts
from jaxformer.errors import InputError, check_range


def checked_cache(cache: Any, batch_size: int, width: int) -> Any:
    """The cache as arrays: an index, and all others with rows B * W."""
    if not hasattr(cache, "index"):
        raise InputError(
            f"the cache is a {type(cache).__name__} without `index`, the number of tokens read; "
            "give IndexedCache(cache)"
        )
    cache = jax.tree.map(jnp.asarray, cache)
    if (cache.index.shape, cache.index.dtype) != ((), jnp.int32):
        raise InputError(
            f"cache.index is {cache.index.dtype}{list(cache.index.shape)}; it must be an int32 "
            "scalar"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if leaf is not cache.index and (leaf.ndim < 1 or leaf.shape[0] != batch_size * width):
            raise InputError(
                f"cache{jax.tree_util.keystr(path)} has shape {leaf.shape}; its leading axis "
                f"must be batch_size * width = {batch_size} * {width} (values that exist once a "
                "sentence belong into the closure of step_fn)"
            )
    return cache


def checked_prompts(
    prompts: jax.Array, prompt_lengths: jax.Array | None, batch_size: int
) -> tuple[jax.Array, jax.Array]:
    """Prompts int32 `[B, P]` and their lengths int32 `[B]`, whose values may be unknown yet."""
    prompts = jnp.asarray(prompts)
    if prompts.ndim != 2 or prompts.shape[0] != batch_size:
        raise InputError(f"prompts has shape {prompts.shape}; expected ({batch_size}, P)")
    if prompt_lengths is None:
        prompt_lengths = jnp.full((batch_size,), prompts.shape[1], jnp.int32)
    prompt_lengths = jnp.asarray(prompt_lengths)
    if prompt_lengths.shape != (batch_size,):
        raise InputError(
            f"prompt_lengths has shape {prompt_lengths.shape}; expected ({batch_size},)"
        )
    for name, array in (("prompts", prompts), ("prompt_lengths", prompt_lengths)):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise InputError(f"{name} is {array.dtype}; give int32")
    return prompts.astype(jnp.int32), prompt_lengths.astype(jnp.int32)


def check_prompt_values(prompts, prompt_lengths, limits, eos_id: int, vocab_size: int) -> None:
    """`check_prompts`, unless `jax.jit` hides the values."""
    if not any(isinstance(x, jax.core.Tracer) for x in (prompts, prompt_lengths, limits)):
        check_prompts(prompts, prompt_lengths, limits, eos_id=eos_id, vocab_size=vocab_size)


def check_same_cache(old: Any, new: Any) -> None:
    """The loop carries the cache, so `step_fn` must return what it was given, and read a token."""
    if getattr(new, "index", None) is old.index:
        raise InputError("step_fn returned cache.index as it was; it must be higher by T")
    given, given_tree = jax.tree_util.tree_flatten_with_path(old)
    returned, returned_tree = jax.tree_util.tree_flatten(new)
    if given_tree != returned_tree:
        raise InputError(f"step_fn returned the cache {returned_tree}; it was given {given_tree}")
    for (path, before), after in zip(given, returned, strict=True):
        if (before.shape, before.dtype) != (jnp.shape(after), jnp.result_type(after)):
            raise InputError(
                f"step_fn returned cache{jax.tree_util.keystr(path)} as "
                f"{jnp.result_type(after)}{list(jnp.shape(after))}; it was given "
                f"{before.dtype}{list(before.shape)} and must keep shape and dtype"
            )


def check_logits(logits: jax.Array, rows: int, length: int, **ids: int) -> None:
    """Logits `[R, T, V]`, with the special ids in the vocabulary."""
    if logits.ndim != 3 or logits.shape[:2] != (rows, length):
        raise InputError(
            f"step_fn returned logits of shape {logits.shape}; expected ({rows}, {length}, V)"
        )
    for name, token in ids.items():
        check_range(name, token, 0, logits.shape[2] - 1)
