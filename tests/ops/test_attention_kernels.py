import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import MeshConfig
from jaxformer.ops.attention import dot_product_attention
from jaxformer.ops.attention_kernels import (
    HEAD_AXIS,
    ROW_AXES,
    attend,
    cudnn_attention,
    reference_attention,
    splash_attention,
    xla_attention,
)
from jaxformer.ops.attention_mask import AttentionMask
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import BATCH_SPEC, LOGICAL_TO_MESH, batch_sharding, replicated


def arrays(queries, keys, rows=4, heads=2, head_dim=8, dtype=np.float32):
    rng = np.random.default_rng(queries)
    shapes = [(rows, n, heads, head_dim) for n in (queries, keys, keys, queries)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def segments(length, rows=4):
    """Three sentences and padding in the even rows, one sentence that fills the odd ones."""
    ids = np.ones((rows, length), np.int32)
    ids[::2, length // 4 :] = 2
    ids[::2, length // 2 :] = 3
    ids[::2, length - length // 5 :] = 0
    return ids


def lengths(longest):
    return np.array([longest, 1, 0, longest // 2], np.int32)


def masks(queries, keys):
    """By name; only the causal ones are for as many keys as queries."""
    mask = np.random.default_rng(5).random((4, 1, queries, keys)) < 0.4
    return {
        "nothing masked": AttentionMask(),
        "causal": AttentionMask(causal=True),
        "padding": AttentionMask(key_lengths=lengths(keys)),
        "causal padding": AttentionMask(causal=True, key_lengths=lengths(keys)),
        "packed": AttentionMask(False, None, segments(queries), segments(keys)),
        "causal packed": AttentionMask(True, None, segments(queries), segments(keys)),
        "any mask": AttentionMask(mask=mask),
    }


def with_gradients(kernel, query, key, value, cotangent, attention_mask):
    @jax.jit
    def run(query, key, value, attention_mask):
        out, pull_back = jax.vjp(lambda *x: kernel(*x, attention_mask), query, key, value)
        return out, *pull_back(cotangent)

    return [np.asarray(x) for x in run(query, key, value, attention_mask)]


def assert_equals_reference(kernel, queries, keys, attention_mask, **shape):
    parts = arrays(queries, keys, **shape)
    got = with_gradients(kernel, *parts, attention_mask)
    wanted = with_gradients(reference_attention, *parts, attention_mask)
    assert np.abs(wanted[0]).max() > 0.5
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", masks(6, 6))
def test_xla_equals_the_reference(kind):
    assert_equals_reference(xla_attention, 6, 6, masks(6, 6)[kind])


def test_xla_equals_the_reference_across_lengths():
    for kind in ("padding", "packed"):
        assert_equals_reference(xla_attention, 5, 8, masks(5, 8)[kind])


@pytest.mark.parametrize(
    ("kind", "queries", "keys"),
    [
        ("padding", 8, 130),
        ("causal", 72, 72),
        ("packed", 130, 40),
        ("causal packed", 130, 130),
    ],
)
def test_splash_equals_the_reference(kind, queries, keys):
    kernel = functools.partial(splash_attention, interpret=True)
    assert_equals_reference(kernel, queries, keys, masks(queries, keys)[kind])


def test_splash_equals_the_reference_on_a_mesh():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    attention_mask = masks(16, 16)["causal packed"]
    parts = arrays(16, 16)

    def kernel(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return splash_attention(*args, interpret=True)

    wanted = with_gradients(reference_attention, *parts, attention_mask)
    placed = [jax.device_put(x, batch_sharding(mesh)) for x in parts]
    got = with_gradients(kernel, *placed, jax.device_put(attention_mask, batch_sharding(mesh)))
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4, rtol=1e-4)
    # 3 rows and 1 head cannot be cut in 4 and 2; each device then works on all of them.
    parts = [x[:3, :, :1] for x in parts]
    attention_mask = AttentionMask()
    np.testing.assert_allclose(
        jax.jit(kernel)(*jax.device_put((*parts[:3], attention_mask), replicated(mesh))),
        reference_attention(*parts[:3], attention_mask),
        atol=1e-4,
    )


def test_splash_cuts_the_axes_of_the_mesh_that_batches_and_heads_lie_on():
    assert BATCH_SPEC == jax.sharding.PartitionSpec(ROW_AXES)
    assert LOGICAL_TO_MESH["heads"] == HEAD_AXIS


@pytest.mark.parametrize("head_dim", [32, 64])
def test_splash_lowers_for_a_tpu(head_dim):
    def gradients(query, key, value, cotangent, ids):
        attention_mask = AttentionMask(True, None, ids, ids)
        out, pull_back = jax.vjp(lambda *x: splash_attention(*x, attention_mask), query, key, value)
        return out, pull_back(cotangent)

    x = jax.ShapeDtypeStruct((2, 200, 2, head_dim), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((2, 200), jnp.int32)
    with jax.default_matmul_precision("default"):
        traced = jax.jit(gradients).trace(x, x, x, x, ids)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("@tpu_custom_call") == 3  # forward, gradient of queries, of keys and values


@pytest.mark.parametrize("kind", ["nothing masked", "causal", "padding", "causal padding"])
def test_cudnn_is_called_with_what_gives_the_reference(kind, monkeypatch):
    """JAX computes the same call on a CPU with its other implementation."""
    library = jax.nn.dot_product_attention

    def stand_in(*args, implementation, **kwargs):
        assert implementation == "cudnn"
        assert set(kwargs) == {"is_causal", "key_value_seq_lengths"}
        calls.append(kwargs)
        return library(*args, **kwargs, implementation="xla")

    calls = []
    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    assert_equals_reference(cudnn_attention, 6, 6, masks(6, 6)[kind])
    assert calls[0]["is_causal"] == ("causal" in kind)


@pytest.mark.parametrize(("kind", "mask_type"), [("padding", "PADDING"), ("causal", "CAUSAL")])
def test_cudnn_lowers_to_its_fused_kernels_without_a_bias(kind, mask_type, monkeypatch):
    # JAX asks the installed cuDNN for its version while it traces, also for another machine.
    monkeypatch.setattr(
        "jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000
    )

    def gradients(query, key, value, cotangent, attention_mask):
        out, pull_back = jax.vjp(lambda *x: cudnn_attention(*x, attention_mask), query, key, value)
        return out, pull_back(cotangent)

    x = jax.ShapeDtypeStruct((4, 64, 2, 64), jnp.bfloat16)
    attention_mask = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), masks(64, 64)[kind]
    )
    traced = jax.jit(gradients).trace(x, x, x, x, attention_mask)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "@__cudnn$fmha" in line]
    assert len(calls) == 2
    assert "@__cudnn$fmhaSoftmax(" in calls[0]
    assert "@__cudnn$fmhaSoftmaxBackward(" in calls[1]
    assert f"\\22mask_type\\22: \\22{mask_type}\\22" in calls[0]
    lengths_given = 2 if kind == "padding" else 0
    assert calls[0].split("(", 1)[1].split(")", 1)[0].count("%") == 3 + lengths_given
    assert "x64x64xbf16" not in text.replace("4x64x2x64xbf16", "").replace("4x2x64x64xbf16", "")


@pytest.mark.parametrize("implementation", ["auto", "reference", "cudnn", "splash"])
def test_attend_is_the_reference_where_it_must_be(implementation):
    query, key, value, _ = arrays(6, 6)
    attention_mask = masks(6, 6)["causal packed"]
    mask = attention_mask.to_mask(6, 6)
    np.testing.assert_array_equal(
        attend(query, key, value, attention_mask=attention_mask, implementation=implementation),
        dot_product_attention(query, key, value, mask),
    )


def test_attend_hands_dropout_and_weights_to_the_reference():
    query, key, value, _ = arrays(6, 6)
    attention_mask = masks(6, 6)["padding"]
    modes = {"dropout_rate": 0.5, "return_weights": True}
    out, weights = attend(
        query,
        key,
        value,
        attention_mask=attention_mask,
        implementation="xla",
        dropout_key=jax.random.key(1),
        **modes,
    )
    wanted, wanted_weights = dot_product_attention(
        query, key, value, attention_mask.to_mask(6, 6), dropout_key=jax.random.key(1), **modes
    )
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(weights, wanted_weights)


def test_attend_uses_the_implementation_that_is_named():
    """A low precision tells them apart: the library scales scores, the reference queries."""
    query, key, value, _ = arrays(6, 6, head_dim=24, dtype=jnp.bfloat16)
    attention_mask = masks(6, 6)["padding"]
    out = attend(query, key, value, attention_mask=attention_mask, implementation="xla")
    np.testing.assert_array_equal(out, xla_attention(query, key, value, attention_mask))
    reference = reference_attention(query, key, value, attention_mask)
    assert (np.asarray(out) != np.asarray(reference)).any()
    np.testing.assert_allclose(out.astype(jnp.float32), reference.astype(jnp.float32), atol=0.05)
