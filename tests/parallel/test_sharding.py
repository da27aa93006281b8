import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxformer.config import MeshConfig, OptimizerConfig
from jaxformer.model_config import PRESETS, TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import (
    LOGICAL_TO_MESH,
    PARAMETER_AXES,
    logical_axes,
    parameter_shardings,
    path_name,
    place_like_parameters,
    shard_batch,
)
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.optimizer import make_optimizer, make_schedule
from jaxformer.training.state import make_init, state_shardings

SMALL = {
    "vocab_size": 32,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 2,
}
VARIANTS = {
    "gated": {"activation": "swiglu"},
    "learned": {"positions": "learned", "max_length": 9},
    "biases": {"attention_bias": True},
    "untied": {"tie_embeddings": False},
    "separate": {"target_vocab_size": 30},
    "pre_norm": {"norm": "pre"},
    "scanned": {
        "scan_layers": True,
        "norm": "pre",
        "attention_bias": True,
        "activation": "geglu",
        "positions": "learned",
        "tie_embeddings": False,
    },
}
CONFIGS = PRESETS | {name: TransformerConfig(**SMALL, **v) for name, v in VARIANTS.items()}


def parameter_shapes(config):
    token = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)["params"]


def leaves(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


@pytest.mark.parametrize("name", CONFIGS)
def test_each_parameter_matches_exactly_one_rule(name):
    for path, leaf in leaves(parameter_shapes(CONFIGS[name])).items():
        matches = [axes for pattern, axes in PARAMETER_AXES if re.fullmatch(pattern, path)]
        assert len(matches) == 1, path
        stacked = ("layers",) if "/layers/" in path else ()
        assert logical_axes(path, leaf.ndim) == (*stacked, *matches[0])
        assert len(logical_axes(path, leaf.ndim)) == leaf.ndim


def test_each_rule_is_used():
    paths = [path for config in CONFIGS.values() for path in leaves(parameter_shapes(config))]
    for pattern, _ in PARAMETER_AXES:
        assert any(re.fullmatch(pattern, path) for path in paths), pattern


def test_logical_axes_are_known():
    named = {axis for _, axes in PARAMETER_AXES for axis in axes}
    assert named | {"layers"} == set(LOGICAL_TO_MESH)
    assert set(LOGICAL_TO_MESH.values()) <= {"data", "fsdp", "tensor", None}


def test_unknown_paths_and_ranks_are_refused():
    with pytest.raises(ValueError, match="'decoder/layer_0/other/kernel' matches 0 rules"):
        logical_axes("decoder/layer_0/other/kernel", 2)
    with pytest.raises(ValueError, match="has rank 3"):
        logical_axes("token_embedding/embedding", 3)


def test_specs_by_hand(mesh):
    config = TransformerConfig(**SMALL, attention_bias=True, tie_embeddings=False)
    shardings = leaves(parameter_shardings(parameter_shapes(config), mesh))
    layer = "decoder/layer_0"
    expected = {
        "source_embedding/embedding": ("tensor", "fsdp"),
        "output_projection/kernel": ("fsdp", "tensor"),
        f"{layer}/cross_attention/query/kernel": ("fsdp", "tensor"),
        f"{layer}/cross_attention/query/bias": ("tensor",),
        f"{layer}/cross_attention/out/kernel": ("tensor", "fsdp"),
        f"{layer}/cross_attention/out/bias": ("fsdp",),
        f"{layer}/feed_forward/inner/kernel": ("fsdp", "tensor"),
        f"{layer}/feed_forward/inner/bias": ("tensor",),
        f"{layer}/feed_forward/outer/kernel": ("tensor", "fsdp"),
        f"{layer}/feed_forward/outer/bias": ("fsdp",),
        f"{layer}/feed_forward_norm/scale": ("fsdp",),
    }
    assert {p: tuple(shardings[p].spec) for p in expected} == expected
    placed = leaves(place_like_parameters(parameter_shapes(config), mesh))
    assert {path: leaf.sharding for path, leaf in placed.items()} == shardings


def test_axes_that_do_not_divide_stay_whole(mesh):
    config = TransformerConfig(**SMALL | {"vocab_size": 31, "d_ff": 33})
    shardings = leaves(parameter_shardings(parameter_shapes(config), mesh))
    assert shardings["token_embedding/embedding"].spec == PartitionSpec(None, "fsdp")
    inner = shardings["encoder/layer_0/feed_forward/inner/kernel"]
    assert inner.spec == PartitionSpec("fsdp", None)


def test_batches_are_cut_over_data_and_fsdp(mesh):
    batch = {"inputs": np.arange(24, dtype=np.int32).reshape(8, 3)}
    placed = shard_batch(batch, mesh)["inputs"]
    np.testing.assert_array_equal(placed, batch["inputs"])
    assert placed.dtype == np.int32
    assert len(placed.addressable_shards) == 8
    for shard in placed.addressable_shards:
        data, fsdp, _ = (int(i[0]) for i in np.where(mesh.devices == shard.device))
        first = 2 * (2 * data + fsdp)
        np.testing.assert_array_equal(shard.data, batch["inputs"][first : first + 2])


def test_moments_and_average_live_where_their_parameters_do(mesh):
    optimizer_config = OptimizerConfig(clip_norm=1.0, weight_decay=0.1)
    optimizer = make_optimizer(
        optimizer_config, make_schedule(optimizer_config, d_model=16, num_steps=10)
    )
    task = Translation(CONFIGS["scanned"], pad_id=0, bos_id=2)
    state = jax.eval_shape(make_init(task, optimizer, ema=True), jax.random.key(0))
    shardings = state_shardings(state, mesh)
    expected = parameter_shardings(state.params, mesh)
    assert shardings.params == shardings.ema_params == expected
    adam = [part for part in shardings.opt_state if hasattr(part, "mu")]
    assert len(adam) == 1
    assert adam[0].mu == adam[0].nu == expected
    assert shardings.step.spec == adam[0].count.spec == PartitionSpec()


def test_the_state_of_muon_has_shardings_too(mesh):
    optimizer = make_optimizer(OptimizerConfig(name="muon"), lambda count: 0.1)
    task = Translation(CONFIGS["scanned"], pad_id=0, bos_id=2)
    state = jax.eval_shape(make_init(task, optimizer, ema=False), jax.random.key(0))
    found = {
        path_name(path): tuple(sharding.spec)
        for path, sharding in jax.tree_util.tree_leaves_with_path(
            state_shardings(state, mesh).opt_state
        )
    }
    inner = [spec for path, spec in found.items() if path.endswith("feed_forward/inner/kernel")]
    assert inner == [(None, "fsdp", "tensor")] * 2
    assert [spec for path, spec in found.items() if path.endswith("ns_coeffs")] == [()]


def test_state_arrays_that_belong_to_no_parameter_are_refused(mesh):
    task = Translation(CONFIGS["gated"], pad_id=0, bos_id=2)
    optimizer = make_optimizer(OptimizerConfig(), lambda count: 0.1)
    state = jax.eval_shape(make_init(task, optimizer, ema=False), jax.random.key(0))
    strange = state._replace(opt_state={"other": jax.ShapeDtypeStruct((3,), jnp.float32)})
    with pytest.raises(ValueError, match="no parameter matches the state array"):
        state_shardings(strange, mesh)
