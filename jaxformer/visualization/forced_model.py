"""The model fed with a known translation: every number it computes, station by station."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.decoding.lengths import length_bucket
from jaxformer.decoding.translator import Translator
from jaxformer.models.embedding import check_positions
from jaxformer.models.layers import TransformerLayer
from jaxformer.models.transformer import Transformer
from jaxformer.ops.chunked_loss import project_to_vocabulary
from jaxformer.ops.positions import encode_positions

TOP_PIECES = 10  # of the distribution at each step
LENS_PIECES = 3  # of what each decoder layer would say
_TABLES = ("token_embedding", "source_embedding", "target_embedding",
           "source_positions", "target_positions")  # fmt: skip


@dataclass(frozen=True)
class EncoderTrace:
    """The encoder's numbers for a sentence of S pieces; float32 NumPy arrays.

    Attributes:
      embedding: `[S, D]`, rows of the table times sqrt(D).
      positions: `[S, D]`, what is added to them; zeros for rotary positions.
      sum: `[S, D]`, what enters the first layer.
      layers: `[L, S, D]`, what each layer gives.
      final_norm: `[S, D]` with pre-norm, where it is the output; None with post-norm.
      attention: `[L, N, S, S]`; rows over the keys sum to 1.
    """

    embedding: np.ndarray
    positions: np.ndarray
    sum: np.ndarray
    layers: np.ndarray
    final_norm: np.ndarray | None
    attention: np.ndarray


@dataclass(frozen=True)
class DecoderTrace:
    """The decoder's numbers for T steps, fed with the translation; float32 unless they are ids.

    Attributes:
      embedding, positions, sum, layers, final_norm: as in `EncoderTrace`, with T for S.
      self_attention: `[L, N, T, T]`, causal.
      cross_attention: `[L, N, T, S]`.
      logits: `[T, V]`.
      log_probs: `[T, V]`, natural logarithms.
      entropy: `[T]` nats, of the distribution at each step.
      top_ids: int32 `[T, 10]`, the most probable pieces.
      lens_ids: int32 `[L, T, 3]`, what the output projection makes of each layer's state.
      lens_probs: `[L, T, 3]`, their probabilities.
    """

    embedding: np.ndarray
    positions: np.ndarray
    sum: np.ndarray
    layers: np.ndarray
    final_norm: np.ndarray | None
    self_attention: np.ndarray
    cross_attention: np.ndarray
    logits: np.ndarray
    log_probs: np.ndarray
    entropy: np.ndarray
    top_ids: np.ndarray
    lens_ids: np.ndarray
    lens_probs: np.ndarray


def unscan(params: dict, model: Transformer) -> tuple[dict, Transformer]:
    """The same model with a module for each layer, which can be watched one by one.

    Args:
      params: of `model`; stacked `layers` become `layer_0 .. layer_{L-1}`.
      model: with scanned layers or without.
    """
    config = model.config
    plain = Transformer(dataclasses.replace(config, scan_layers=False, remat=False))
    if not config.scan_layers:
        return params, plain
    unstacked = dict(params)
    for side, depth in (
        ("encoder", config.num_encoder_layers),
        ("decoder", config.num_decoder_layers),
    ):
        unstacked[side] = {name: params[side][name] for name in params[side] if name != "layers"}
        for i in range(depth):
            layer = jax.tree.map(lambda leaf, i=i: leaf[i], params[side]["layers"])
            unstacked[side][f"layer_{i}"] = layer
    return unstacked, plain


class ForcedModel:
    """The model over one source sentence, ready to be fed with any translation.

    Rows are padded to a few lengths, as in `Translator`, so that few programs are compiled.
    """

    def __init__(self, translator: Translator, source_ids: np.ndarray):
        self.target_tokenizer = translator.target_tokenizer
        self._params, self._model = translator.params, translator.model
        length = len(source_ids)
        self._inputs_mask = np.arange(self._padded(length))[None] < length
        inputs = np.full(self._inputs_mask.shape, translator.source_tokenizer.pad_id, np.int32)
        inputs[0, :length] = source_ids
        self._encoded, stations = _encode(
            self._params, inputs, self._inputs_mask, model=self._model
        )
        stations = jax.device_get(stations)
        attention = stations.pop("attention")[:, :, :length, :length]
        self.encoder = EncoderTrace(**_cut(stations, length), attention=attention)

    def decode(self, target_ids: np.ndarray) -> tuple[np.ndarray, DecoderTrace]:
        """What the decoder reads to write `target_ids`, and all that it computes then."""
        length, source_length = len(target_ids), len(self.encoder.sum)
        decoder_ids = np.array([self.target_tokenizer.bos_id, *target_ids[:-1]], np.int32)
        tokens = np.full((1, self._padded(length)), self.target_tokenizer.pad_id, np.int32)
        tokens[0, :length] = decoder_ids
        stations = jax.device_get(
            _decode(self._params, self._encoded, self._inputs_mask, tokens, model=self._model)
        )
        own = stations.pop("self_attention")[:, :, :length, :length]
        cross = stations.pop("cross_attention")[:, :, :length, :source_length]
        return decoder_ids, DecoderTrace(
            **_cut(stations, length), self_attention=own, cross_attention=cross
        )

    def _padded(self, length: int) -> int:
        check_positions(self._model.config, length)
        return length_bucket(length, self._model.config.position_limit)


def _cut(stations: dict[str, np.ndarray | None], length: int) -> dict[str, np.ndarray | None]:
    """The first `length` positions of each array; layers come before positions."""
    per_layer = ("layers", "lens_ids", "lens_probs")

    def cut(name: str, array: np.ndarray | None) -> np.ndarray | None:
        if array is None:
            return None
        return array[:, :length] if name in per_layer else array[:length]

    return {name: cut(name, array) for name, array in stations.items()}


@partial(jax.jit, static_argnames="model")
def _encode(params, inputs, inputs_mask, *, model: Transformer):
    """The encoder's output `[1, S, D]`, and its stations without the batch axis."""
    params, model = unscan(params, model)
    encoded, seen = _watch(model, params, inputs, inputs_mask=inputs_mask, method="encode")
    stations = _stations(model, seen, "encoder", encoded.states)
    return encoded.states, stations | {"attention": encoded.attention[:, 0].astype(jnp.float32)}


@partial(jax.jit, static_argnames="model")
def _decode(params, encoded, inputs_mask, tokens, *, model: Transformer):
    """The decoder's stations without the batch axis."""
    params, model = unscan(params, model)
    output, seen = _watch(
        model, params, tokens, encoded, inputs_mask=inputs_mask, project=False, method="decode"
    )
    stations = _stations(model, seen, "decoder", output.states)
    table = model.output_table(params)

    def read_out(states: jax.Array) -> tuple[jax.Array, jax.Array]:  # [1, T, D]
        logits = project_to_vocabulary(states, table)[0]  # [T, V]
        return logits, jax.nn.log_softmax(logits, axis=-1)

    def read_layer(states: jax.Array) -> tuple[jax.Array, jax.Array]:
        if model.config.norm == "pre":
            states = model.apply({"params": params}, states, method=_final_norm)
        values, ids = jax.lax.top_k(read_out(states)[1], min(LENS_PIECES, len(table)))
        return ids, jnp.exp(values)

    lens = [read_layer(layer[0]) for layer in _layers(seen, "decoder")]
    logits, log_probs = read_out(output.states)
    return stations | {
        "self_attention": output.attention.decoder[:, 0].astype(jnp.float32),
        "cross_attention": output.attention.cross[:, 0].astype(jnp.float32),
        "logits": logits,
        "log_probs": log_probs,
        "entropy": -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1),
        "top_ids": jax.lax.top_k(log_probs, min(TOP_PIECES, len(table)))[1],
        "lens_ids": jnp.stack([ids for ids, _ in lens]),
        "lens_probs": jnp.stack([probs for _, probs in lens]),
    }


def _final_norm(model: Transformer, states: jax.Array) -> jax.Array:
    return model.decoder.final_norm(states)


def _watch(model: Transformer, params, *arguments, **options):
    """Apply a method of the model, with attention, and what its tables and layers return."""

    def is_station(module, method: str) -> bool:
        if method == "__call__":
            return isinstance(module, TransformerLayer) or module.name in _TABLES
        return method == "_embed" and isinstance(module, Transformer)

    outputs, collections = model.apply(
        {"params": params},
        *arguments,
        **options,
        return_attention=True,
        capture_intermediates=is_station,
        mutable=["intermediates"],
    )
    return outputs, collections["intermediates"]


def _layers(seen: dict, side: str) -> list[tuple]:
    """What each layer returned: its output and its `LayerOutputs`."""
    return [seen[side][f"layer_{i}"]["__call__"][0] for i in range(len(seen[side]))]


def _stations(model: Transformer, seen: dict, side: str, output: jax.Array) -> dict:
    """Embedding, positions, their sum, and the layers: float32, without the batch axis."""
    config, language = model.config, {"encoder": "source", "decoder": "target"}[side]
    (total, positions), *_ = seen["_embed"]
    shared = config.shares_vocabulary and config.tie_embeddings
    rows = seen["token_embedding" if shared else f"{language}_embedding"]["__call__"][0]
    added = jnp.zeros_like(total)
    if config.positions == "sinusoidal":
        added = encode_positions(positions, config.d_model).astype(total.dtype)
    elif config.positions == "learned":
        added = seen[f"{language}_positions"]["__call__"][0]
    stations = {
        "embedding": rows[0] * jnp.asarray(math.sqrt(config.d_model), rows.dtype),
        "positions": added[0],
        "sum": total[0],
        "layers": jnp.stack([layer[0][0] for layer in _layers(seen, side)]),
        "final_norm": output[0] if config.norm == "pre" else None,
    }
    return jax.tree.map(lambda array: array.astype(jnp.float32), stations)
