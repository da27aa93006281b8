"""Golden lists: parameter paths are API, and the counts are those of the paper's models.

Nothing is computed here: shapes only.
"""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxformer.model_config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.sharding import path_name

TINY = {
    "token_embedding/embedding": (10_000, 128),
    "encoder/layer_0/self_attention/query/kernel": (128, 128),
    "encoder/layer_0/self_attention/key/kernel": (128, 128),
    "encoder/layer_0/self_attention/value/kernel": (128, 128),
    "encoder/layer_0/self_attention/out/kernel": (128, 128),
    "encoder/layer_0/self_attention_norm/scale": (128,),
    "encoder/layer_0/self_attention_norm/bias": (128,),
    "encoder/layer_0/feed_forward/inner/kernel": (128, 256),
    "encoder/layer_0/feed_forward/inner/bias": (256,),
    "encoder/layer_0/feed_forward/outer/kernel": (256, 128),
    "encoder/layer_0/feed_forward/outer/bias": (128,),
    "encoder/layer_0/feed_forward_norm/scale": (128,),
    "encoder/layer_0/feed_forward_norm/bias": (128,),
    "decoder/layer_0/self_attention/query/kernel": (128, 128),
    "decoder/layer_0/self_attention/key/kernel": (128, 128),
    "decoder/layer_0/self_attention/value/kernel": (128, 128),
    "decoder/layer_0/self_attention/out/kernel": (128, 128),
    "decoder/layer_0/self_attention_norm/scale": (128,),
    "decoder/layer_0/self_attention_norm/bias": (128,),
    "decoder/layer_0/cross_attention/query/kernel": (128, 128),
    "decoder/layer_0/cross_attention/key/kernel": (128, 128),
    "decoder/layer_0/cross_attention/value/kernel": (128, 128),
    "decoder/layer_0/cross_attention/out/kernel": (128, 128),
    "decoder/layer_0/cross_attention_norm/scale": (128,),
    "decoder/layer_0/cross_attention_norm/bias": (128,),
    "decoder/layer_0/feed_forward/inner/kernel": (128, 256),
    "decoder/layer_0/feed_forward/inner/bias": (256,),
    "decoder/layer_0/feed_forward/outer/kernel": (256, 128),
    "decoder/layer_0/feed_forward/outer/bias": (128,),
    "decoder/layer_0/feed_forward_norm/scale": (128,),
    "decoder/layer_0/feed_forward_norm/bias": (128,),
}


def parameter_shapes(config):
    """Path -> shape of every parameter."""
    token = jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)["params"]
    assert type(params) is dict
    return {
        path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def small(**changes):
    sizes = {"vocab_size": 20, "d_model": 8, "d_ff": 12, "num_heads": 2}
    return TransformerConfig(**{"num_encoder_layers": 2, "num_decoder_layers": 1} | sizes | changes)


def test_tiny_parameter_tree():
    shapes = parameter_shapes(TransformerConfig.preset("tiny", vocab_size=10_000))
    first = {path: shape for path, shape in shapes.items() if "/layer_" not in path}
    first |= {path: shape for path, shape in shapes.items() if "/layer_0/" in path}
    assert first == TINY
    for index in (1, 2, 3):
        layer = {
            path.replace(f"layer_{index}/", "layer_0/"): shape
            for path, shape in shapes.items()
            if f"/layer_{index}/" in path
        }
        assert layer == {path: shape for path, shape in TINY.items() if "/layer_0/" in path}
    assert len(shapes) == 1 + 4 * 12 + 4 * 18


@pytest.mark.parametrize(
    ("preset", "vocab_size", "matrices", "everything"),
    [
        ("tiny", 10_000, 2_590_720, 2_598_912),
        ("base", 32_000, 60_424_192, 60_485_632),
        ("base", 37_000, 62_984_192, 63_045_632),  # 65 M in table 3 of the paper
        ("big", 32_000, 208_928_768, 209_051_648),
        ("big", 37_000, 214_048_768, 214_171_648),  # 213 M in table 3 of the paper
    ],
)
def test_parameter_counts(preset, vocab_size, matrices, everything):
    shapes = parameter_shapes(TransformerConfig.preset(preset, vocab_size=vocab_size)).values()
    assert sum(math.prod(shape) for shape in shapes if len(shape) > 1) == matrices
    assert sum(math.prod(shape) for shape in shapes) == everything


def test_variants_add_these_parameters_and_no_others():
    plain = parameter_shapes(small())
    added = {
        path: shape
        for path, shape in parameter_shapes(
            small(norm="pre", positions="learned", max_length=9, activation="swiglu")
        ).items()
        if path not in plain
    }
    gates = [f"encoder/layer_{i}" for i in (0, 1)] + ["decoder/layer_0"]
    expected = {f"{layer}/feed_forward/gate/kernel": (8, 12) for layer in gates}
    expected |= {f"{layer}/feed_forward/gate/bias": (12,) for layer in gates}
    for side in ("encoder", "decoder"):
        expected |= {f"{side}/final_norm/{name}": (8,) for name in ("scale", "bias")}
    expected |= {f"{side}_positions/embedding": (9, 8) for side in ("source", "target")}
    assert added == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"token_embedding/embedding": (20, 8)}),
        (
            {"target_vocab_size": 14},
            {"source_embedding/embedding": (20, 8), "target_embedding/embedding": (14, 8)},
        ),
        (
            {"tie_embeddings": False},
            {
                "source_embedding/embedding": (20, 8),
                "target_embedding/embedding": (20, 8),
                "output_projection/kernel": (8, 20),
            },
        ),
        (
            {"tie_embeddings": False, "target_vocab_size": 14},
            {
                "source_embedding/embedding": (20, 8),
                "target_embedding/embedding": (14, 8),
                "output_projection/kernel": (8, 14),
            },
        ),
    ],
)
def test_embeddings_of_each_kind_of_vocabulary(changes, expected):
    shapes = parameter_shapes(small(**changes))
    assert {p: s for p, s in shapes.items() if p.count("/") == 1} == expected


def test_attention_biases():
    shapes = parameter_shapes(small(attention_bias=True))
    biases = [path for path in shapes if "_attention/" in path and path.endswith("bias")]
    assert len(biases) == 4 * (2 + 2)
    assert {shapes[path] for path in biases} == {(8,)}


def test_scanned_layers_are_stacked():
    plain, scanned = parameter_shapes(small()), parameter_shapes(small(scan_layers=True))
    layers = {"encoder": 2, "decoder": 1}
    expected = {path: shape for path, shape in plain.items() if "/layer_" not in path}
    for path, shape in plain.items():
        if "/layer_0/" in path:
            stacked = (layers[path.split("/")[0]], *shape)
            expected[path.replace("/layer_0/", "/layers/")] = stacked
    assert scanned == expected


def test_parameters_are_of_the_parameter_dtype():
    config = small(param_dtype="bfloat16", norm="pre", tie_embeddings=False, attention_bias=True)
    token = jnp.zeros((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
