"""The loss in chunks against the loss on whole logits: sums, gradients, memory, devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config import MeshConfig
from jaxformer.ops.chunked_loss import (
    automatic_chunk_tokens,
    chunked_loss_sums,
    project_to_vocabulary,
)
from jaxformer.ops.losses import label_smoothed_cross_entropy
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import BATCH_AXES

B, T, D, V = 8, 7, 12, 50


def sample(dtype=jnp.float32, rows=B, length=T, width=D, pieces=V):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(rows, length, width)), dtype)
    table = jnp.asarray(rng.normal(size=(pieces, width)), dtype)
    targets = jnp.asarray(rng.integers(0, pieces, (rows, length)), jnp.int32)
    weights = jnp.asarray(rng.random((rows, length)) < 0.7, jnp.float32)
    return hidden, table, {"targets": targets, "weights": weights}


def token_sums(logits, arguments):
    losses = label_smoothed_cross_entropy(logits, arguments["targets"], 0.1)
    return {name: jnp.sum(value * arguments["weights"]) for name, value in losses._asdict().items()}


def whole(hidden, table, arguments):
    sums = token_sums(jnp.einsum("BTD,VD->BTV", hidden, table), arguments)
    return sums["loss"], sums


def in_chunks(chunk, **devices):
    def run(hidden, table, arguments):
        sums = chunked_loss_sums(
            token_sums, hidden, table, arguments, chunk_tokens=chunk, **devices
        )
        return sums["loss"], sums

    return run


def gradients(function, *operands):
    return jax.jit(jax.grad(function, (0, 1), has_aux=True))(*operands)


def assert_close(got, wanted, tolerance=1e-5):
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        scale = float(jnp.max(jnp.abs(other)))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("chunk", [1, 5, 16, 56, 1000])
def test_sums_and_gradients_equal_those_of_the_whole(chunk):
    operands = sample()
    assert_close(gradients(in_chunks(chunk), *operands), gradients(whole, *operands))
    assert_close(jax.jit(in_chunks(chunk))(*operands), whole(*operands))


@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 2, "fsdp": 4}, {"data": 2, "tensor": 4}])
def test_devices_that_share_the_rows_give_the_same(mesh):
    operands = sample()
    devices = {"mesh": make_mesh(MeshConfig(**mesh)), "batch_axes": BATCH_AXES}
    assert_close(gradients(in_chunks(4, **devices), *operands), gradients(whole, *operands))
    assert_close(jax.jit(in_chunks(4, **devices))(*operands), whole(*operands))


def test_gradient_is_scaled_by_what_uses_the_loss():
    hidden, table, arguments = sample()
    once, thrice = (
        jax.grad(lambda h, n=n: n * in_chunks(16)(h, table, arguments)[0])(hidden) for n in (1, 3)
    )
    np.testing.assert_allclose(thrice, 3 * once, rtol=1e-6)


def test_chunks_without_a_counted_token_are_not_computed():
    hidden, table, arguments = sample()
    computed = []

    def counting(logits, arguments):
        jax.debug.callback(lambda w: computed.append(float(w)), jnp.sum(arguments["weights"]))
        return token_sums(logits, arguments)

    for counted, chunks in ((0, 0), (1, 1), (8, 1), (9, 2), (56, 7)):
        weights = (jnp.arange(B * T)[::-1] < counted).astype(jnp.float32).reshape(B, T)
        computed.clear()
        sums = chunked_loss_sums(
            counting, hidden, table, arguments | {"weights": weights}, chunk_tokens=8
        )
        jax.effects_barrier()
        assert len(computed) == chunks and sum(computed) == counted
        wanted = whole(hidden, table, arguments | {"weights": weights})[0]
        assert float(sums["loss"]) == pytest.approx(float(wanted), rel=1e-5)


def test_bfloat16_logits_are_float32_and_gradients_keep_their_dtype():
    operands = sample(jnp.bfloat16)
    logits = project_to_vocabulary(*operands[:2])
    wide = [x.astype(jnp.float32) for x in operands[:2]]
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, jnp.einsum("BTD,VD->BTV", *wide), rtol=1e-5, atol=1e-5)
    (of_hidden, of_table), _ = gradients(in_chunks(16), *operands)
    assert of_hidden.dtype == of_table.dtype == jnp.bfloat16
    assert_close((of_hidden, of_table), gradients(whole, *wide, operands[2])[0], tolerance=0.02)


def test_devices_add_up_float32_gradients_of_a_bfloat16_table():
    """XLA ends the process at a bfloat16 sum over some axes of a CPU mesh, and it loses digits."""
    operands = sample(jnp.bfloat16)
    devices = {"mesh": make_mesh(MeshConfig(fsdp=2, tensor=2)), "batch_axes": BATCH_AXES}
    got, _ = gradients(in_chunks(4, **devices), *operands)
    assert_close(got, gradients(in_chunks(4), *operands)[0], tolerance=0.01)
    assert got[1].dtype == jnp.bfloat16


def test_temporary_memory_is_that_of_a_chunk():
    operands = sample(rows=32, length=32, width=16, pieces=2000)  # logits: 8 MB

    def temporaries(function):
        compiled = jax.jit(jax.grad(function, (0, 1), has_aux=True)).lower(*operands).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(whole) > 8e6
    assert temporaries(in_chunks(64)) < 0.25 * temporaries(whole)


def test_automatic_chunks():
    assert automatic_chunk_tokens(10_000, 128, "cpu") == 512
    assert automatic_chunk_tokens(32_000, 512, "cpu") == 1024  # 2 D: the table's gradient is large
    assert automatic_chunk_tokens(32_000, 512, "gpu") == 8192
    assert automatic_chunk_tokens(10**9, 64, "tpu") == 128


@pytest.mark.parametrize("chunk", [0, -1, 2.0, None])
def test_a_chunk_that_is_no_number_of_tokens_is_refused(chunk):
    with pytest.raises(ValueError, match=f"chunk_tokens={chunk}.*at least 1"):
        in_chunks(chunk)(*sample())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h, t, a: (h, t, a | {"targets": a["targets"].T}), r"targets.*\(7, 8\).*\(8, 7\)"),
        (lambda h, t, a: (h, t, {"targets": a["targets"]}), r"\['targets'\] lack 'weights'"),
        (lambda h, t, a: (h[..., :1], t, a), r"table has shape \(50, 12\).*\(any, 1\)"),
        (lambda h, t, a: (h[:0], t, a), r"hidden has shape \(0, 7, 12\)"),
        (lambda h, t, a: (h[0], t, a), r"hidden has shape \(7, 12\).*\[B, T, ..., D\]"),
        (lambda h, t, a: (h, t.astype(jnp.bfloat16), a), "table is bfloat16 and hidden is float32"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(change, words):
    """Targets with their axes exchanged have as many tokens, and gave the loss of other ones."""
    with pytest.raises(ValueError, match=words):
        in_chunks(8)(*change(*sample()))


def test_weights_that_are_all_zero_give_zeros_without_nan():
    hidden, table, arguments = sample()
    arguments["weights"] = jnp.zeros((B, T))
    (of_hidden, of_table), sums = gradients(in_chunks(8), hidden, table, arguments)
    for array in (of_hidden, of_table, *sums.values()):
        np.testing.assert_array_equal(array, 0)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (jnp.ones((V, D), jnp.bfloat16), r"table is bfloat16 and hidden.*astype\(hidden.dtype\)"),
        (jnp.ones((V, 1)), r"table has shape \(50, 1\).*\(any, 12\)"),
    ],
)
def test_a_table_of_another_width_or_dtype_is_refused(table, words):
    hidden = jnp.ones((B, T, D))
    with pytest.raises(ValueError, match=words):
        project_to_vocabulary(hidden, table)
    with pytest.raises(ValueError, match=words):
        jax.vjp(project_to_vocabulary, hidden, table)


@pytest.mark.parametrize(("sizes", "words"), [((0, 8), "vocab_size=0"), ((8, -1), "d_model=-1")])
def test_sizes_of_nothing_have_no_chunks(sizes, words):
    with pytest.raises(ValueError, match=f"{words}.*at least 1"):
        automatic_chunk_tokens(*sizes, "cpu")
