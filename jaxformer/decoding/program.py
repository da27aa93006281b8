"""The compiled program of a translation: encode a batch, then search to its end."""

from __future__ import annotations

from functools import partial

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.decoding.engine import DecodingResult, Strategy, decode
from jaxformer.models.transformer import Transformer
from jaxformer.ops.kv_cache import KVCache
from jaxformer.parallel.sharding import BATCH_AXES, parameter_shardings


@partial(jax.jit, static_argnames=("model", "strategy", "ids", "max_length", "padding", "mesh"))
def translate_batch(
    params: dict,
    inputs: jax.Array,
    max_lengths: jax.Array,
    prompts: jax.Array | None = None,
    prompt_lengths: jax.Array | None = None,
    seed: jax.Array | None = None,
    row_ids: jax.Array | None = None,
    *,
    model: Transformer,
    strategy: Strategy,
    ids: tuple[int, int, int, int],
    max_length: int,
    padding: int | None = None,
    mesh: Mesh | None = None,
) -> DecodingResult:
    """Encode source sentences, and search for their translations.

    Args:
      params: of the model.
      inputs: int32 `[B, S]`, source ids with EOS.
      max_lengths: int32 `[B]`, each sentence's limit in tokens, EOS included; 0: an empty row.
      prompts: int32 `[B, P]`, target ids that the translations begin with; None: none.
      prompt_lengths: int32 `[B]`, with `prompts`.
      seed: int32 scalar, for a strategy that draws, else None.
      row_ids: int32 `[B]`, names the sentences for the draws.
      model: the `Transformer`.
      strategy: chooses the tokens.
      ids: padding of the source; padding, EOS and BOS of the target.
      max_length: room for tokens in a hypothesis, prompt and EOS included.
      padding: bound on `P - prompt_lengths` of rows that are not empty; None: P.
      mesh: over which parameters and rows are sharded; None: one device.
    """
    source_pad, pad_id, eos_id, bos_id = ids
    variables = {"params": _for_every_token(params, model.config.dtype, mesh)}
    inputs_mask = inputs != source_pad
    encoded = model.apply(variables, inputs, inputs_mask=inputs_mask, method="encode").states
    starts = None
    if prompts is not None:
        starts = prompts.shape[1] - prompt_lengths
        padding = prompts.shape[1] if padding is None else padding
    cache = model.apply(
        variables,
        encoded,
        max_length,
        inputs_mask=inputs_mask,
        num_hypotheses=strategy.width,
        starts=starts,
        padding=padding or 0,
        method="init_cache",
    )
    # What exists once a sentence stays outside the loop, which reorders rows of hypotheses.
    of_sentences = {"cross_attention": cache.cross_attention, "inputs_mask": cache.inputs_mask}
    outside = dict.fromkeys(of_sentences)

    def step(tokens: jax.Array, cache: KVCache) -> tuple[jax.Array, KVCache]:
        cache = cache._replace(**of_sentences)
        output = model.apply(variables, tokens, cache=cache, method="decode")
        return output.logits, output.cache._replace(**outside)

    return decode(
        step,
        cache._replace(**outside),
        strategy,
        batch_size=inputs.shape[0],
        bos_id=bos_id,
        eos_id=eos_id,
        pad_id=pad_id,
        max_length=max_length,
        max_lengths=max_lengths,
        prompts=prompts,
        prompt_lengths=prompt_lengths,
        key=None if seed is None else jax.random.key(seed),
        row_ids=row_ids,
    )


def _for_every_token(params: dict, dtype: str, mesh: Mesh | None) -> dict:
    """Parameters as every token's products take them: in the dtype of the computation, and sharded
    over `tensor` alone.

    Said once before the search: left alone, XLA for GPUs converts the matrices again for every
    token, and on several devices sends activations over `fsdp` for each.
    """
    matrices = ("kernel", "embedding")

    def convert(path, param):
        return param.astype(dtype) if path[-1].key in matrices else param

    def gather(param: jax.Array, sharding: NamedSharding) -> jax.Array:
        spec = PartitionSpec(*(None if axis in BATCH_AXES else axis for axis in sharding.spec))
        return jax.lax.with_sharding_constraint(param, NamedSharding(mesh, spec))

    converted = jax.tree_util.tree_map_with_path(convert, params)
    if mesh is None:
        return converted
    return jax.tree.map(gather, converted, parameter_shardings(params, mesh))
