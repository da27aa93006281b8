"""jaxformer: the encoder-decoder Transformer of "Attention Is All You Need", in JAX.

Everything here works in a notebook: no configuration file, no mesh, no workdir. Names are loaded
when they are first used, so that the data pipeline and `--help` start without JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxformer.version import __version__ as __version__

if TYPE_CHECKING:
    from jaxformer.config import Config, DecodingConfig, MeshConfig, TransformerConfig
    from jaxformer.decoding.engine import DecodingResult, decode
    from jaxformer.decoding.strategies import BeamSearch, Greedy, Sample
    from jaxformer.decoding.translator import Hypothesis, Translator
    from jaxformer.errors import InputError
    from jaxformer.models.layers import FeedForward, MultiHeadAttention, TransformerLayer
    from jaxformer.models.stack import TransformerStack
    from jaxformer.models.transformer import AttentionWeights, Transformer
    from jaxformer.ops.attention import dot_product_attention
    from jaxformer.ops.dropout import dropout
    from jaxformer.ops.kv_cache import KVCache, LayerCache
    from jaxformer.ops.losses import label_smoothed_cross_entropy, shift_right
    from jaxformer.ops.masks import causal_mask, combine_masks, padding_mask, segment_mask
    from jaxformer.ops.positions import apply_rotary, encode_positions, sinusoidal_positions
    from jaxformer.parallel.mesh import make_mesh
    from jaxformer.parallel.sharding import parameter_shardings, shard_batch

__all__ = [
    "AttentionWeights",
    "BeamSearch",
    "Config",
    "DecodingConfig",
    "DecodingResult",
    "FeedForward",
    "Greedy",
    "Hypothesis",
    "InputError",
    "KVCache",
    "LayerCache",
    "MeshConfig",
    "MultiHeadAttention",
    "Sample",
    "Transformer",
    "TransformerConfig",
    "TransformerLayer",
    "TransformerStack",
    "Translator",
    "apply_rotary",
    "causal_mask",
    "combine_masks",
    "decode",
    "dot_product_attention",
    "dropout",
    "encode_positions",
    "label_smoothed_cross_entropy",
    "make_mesh",
    "padding_mask",
    "parameter_shardings",
    "segment_mask",
    "shard_batch",
    "shift_right",
    "sinusoidal_positions",
]

_NAMES_OF_MODULES = {
    "jaxformer.config": ("Config", "DecodingConfig", "MeshConfig"),
    "jaxformer.model_config": ("TransformerConfig",),
    "jaxformer.decoding.engine": ("DecodingResult", "decode"),
    "jaxformer.decoding.strategies": ("BeamSearch", "Greedy", "Sample"),
    "jaxformer.decoding.translator": ("Hypothesis", "Translator"),
    "jaxformer.errors": ("InputError",),
    "jaxformer.models.layers": ("FeedForward", "MultiHeadAttention", "TransformerLayer"),
    "jaxformer.models.stack": ("TransformerStack",),
    "jaxformer.models.transformer": ("AttentionWeights", "Transformer"),
    "jaxformer.ops.attention": ("dot_product_attention",),
    "jaxformer.ops.dropout": ("dropout",),
    "jaxformer.ops.kv_cache": ("KVCache", "LayerCache"),
    "jaxformer.ops.losses": ("label_smoothed_cross_entropy", "shift_right"),
    "jaxformer.ops.masks": ("causal_mask", "combine_masks", "padding_mask", "segment_mask"),
    "jaxformer.ops.positions": ("apply_rotary", "encode_positions", "sinusoidal_positions"),
    "jaxformer.parallel.mesh": ("make_mesh",),
    "jaxformer.parallel.sharding": ("parameter_shardings", "shard_batch"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
