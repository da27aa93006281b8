"""Forward-mode differentiation of the operations whose backward pass is written by hand."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.ops.attention import dot_product_attention
from jaxformer.ops.chunked_loss import chunked_loss_sums, project_to_vocabulary
from jaxformer.ops.dense import dense
from jaxformer.ops.differentiation import plain_derivatives
from jaxformer.ops.layer_norm import layer_norm
from jaxformer.ops.losses import label_smoothed_cross_entropy, two_pass_cross_entropy

RNG = np.random.default_rng(0)
TARGETS = jnp.asarray(RNG.integers(0, 5, (2, 3)), jnp.int32)
WEIGHTS = jnp.asarray([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def chunked(hidden, table):
    def sums(logits, arguments):
        losses = label_smoothed_cross_entropy(logits, arguments["targets"], 0.1)
        return {"loss": jnp.sum(losses.loss * arguments["weights"])}

    arguments = {"targets": TARGETS, "weights": WEIGHTS}
    return chunked_loss_sums(sums, hidden, table, arguments, chunk_tokens=2)["loss"]


OPERATIONS = {
    "dense": (dense, (normal(2, 3, 4), normal(4, 5))),
    "layer_norm": (lambda x, s, b: layer_norm(x, s, b, 1e-6), (normal(2, 4), normal(4), normal(4))),
    "attention": (
        lambda q, k, v: dot_product_attention(q, k, v, jnp.tri(3, dtype=bool)[None, None]),
        (normal(2, 3, 2, 4), normal(2, 3, 2, 4), normal(2, 3, 2, 4)),
    ),
    "projection": (project_to_vocabulary, (normal(2, 3, 4), normal(5, 4))),
    "cross-entropy": (
        lambda z: label_smoothed_cross_entropy(z, TARGETS, 0.1)[:2],
        (normal(2, 3, 5),),
    ),
    "two passes": (
        lambda z: two_pass_cross_entropy(z, TARGETS, 0.1, 0.7)[:2],
        (normal(2, 3, 2, 5),),
    ),
    "chunked loss": (chunked, (normal(2, 3, 4), normal(5, 4))),
}
each_operation = pytest.mark.parametrize(
    ("function", "arguments"), OPERATIONS.values(), ids=OPERATIONS.keys()
)


def close(actual, expected, tolerance=1e-4):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        scale = max(1.0, float(jnp.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * scale)


def scalar_of(function, arguments):
    """A scalar of the operation that is linear in no argument."""
    outputs = jax.eval_shape(function, *arguments)
    directions = jax.tree.map(lambda out: normal(*out.shape), outputs)

    def scalar(*arguments):
        products = jax.tree.map(
            lambda y, d: jnp.sum(jnp.sin(y) * d), function(*arguments), directions
        )
        return sum(jax.tree.leaves(products))

    return scalar


def product(trees):
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, *trees)))


@each_operation
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_a_tangent_is_the_gradient_along_it(function, arguments, compiled):
    scalar = scalar_of(function, arguments)
    directions = tuple(normal(*x.shape) for x in arguments)
    expected = product((jax.grad(scalar, tuple(range(len(arguments))))(*arguments), directions))
    scalar = jax.jit(scalar) if compiled else scalar
    with plain_derivatives():
        value, tangent = jax.jvp(scalar, arguments, directions)
        _, linear = jax.linearize(scalar, *arguments)
    close((value, tangent, linear(*directions)), (scalar(*arguments), expected, expected))


@each_operation
def test_both_ways_to_the_gradient_agree(function, arguments):
    scalar, every = scalar_of(function, arguments), tuple(range(len(arguments)))
    written = jax.value_and_grad(scalar, every)(*arguments)
    with plain_derivatives():
        plain = jax.value_and_grad(scalar, every)(*arguments)
        forward = jax.jacfwd(scalar, every)(*arguments)
    close(plain, written)
    close(forward, written[1])


@each_operation
def test_the_hessian_needs_no_context(function, arguments):
    scalar, every = scalar_of(function, arguments), tuple(range(len(arguments)))
    written = jax.jit(jax.hessian(scalar, every))(*arguments)
    with plain_derivatives():
        plain = jax.jit(jax.jacfwd(jax.jacrev(scalar, every), every))(*arguments)
        other_order = jax.jit(jax.jacrev(jax.jacfwd(scalar, every), every))(*arguments)
    close(written, plain)
    close(written, other_order)


@each_operation
def test_gradients_of_many_examples_at_once(function, arguments):
    """`jax.vmap` of a written backward pass, and of the plain one."""
    gradient = jax.grad(scalar_of(function, arguments))
    many = tuple(jnp.stack([x, 0.5 * x]) for x in arguments)
    one_by_one = jnp.stack([gradient(*(x[n] for x in many)) for n in range(2)])
    close(jax.vmap(gradient)(*many), one_by_one)
    with plain_derivatives():
        close(jax.vmap(gradient)(*many), one_by_one)


def small_loss(parameters):
    x = jnp.sin(dense(OPERATIONS["dense"][1][0], parameters["kernel"]))
    logits = layer_norm(x, parameters["scale"], parameters["bias"], 1e-6)
    return jnp.sum(label_smoothed_cross_entropy(logits, TARGETS, 0.1).loss * WEIGHTS)


def test_the_hessian_equals_differences_of_gradients():
    parameters = {"kernel": normal(4, 5), "scale": 1 + 0.1 * normal(5), "bias": normal(5)}
    flat, unflatten = jax.flatten_util.ravel_pytree(parameters)
    gradient = jax.jit(jax.grad(lambda x: small_loss(unflatten(x))))
    hessian = jax.jit(jax.hessian(lambda x: small_loss(unflatten(x))))(flat)
    assert float(jnp.abs(hessian).max()) > 0.1
    step = 1e-2
    for index, row in enumerate(hessian):
        moved = jnp.zeros_like(flat).at[index].set(step)
        difference = (gradient(flat + moved) - gradient(flat - moved)) / (2 * step)
        np.testing.assert_allclose(row, difference, atol=2e-3)


def test_the_context_counts_where_a_function_is_traced():
    """A jitted function that was called before is traced anew, and the other way round."""
    x, kernel = normal(2, 4), normal(4, 5)
    compiled = jax.jit(lambda x: jnp.sum(dense(x, kernel)))
    compiled(x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(compiled, (x,), (x,))
    with plain_derivatives():
        jax.jvp(compiled, (x,), (x,))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(compiled, (x,), (x,))
    jax.grad(compiled)(x)


def test_the_context_ends_with_an_error_and_may_be_nested():
    x, kernel = normal(2, 4), normal(4, 5)
    with plain_derivatives():
        with pytest.raises(ZeroDivisionError), plain_derivatives():
            raise ZeroDivisionError
        jax.jvp(dense, (x, kernel), (x, kernel))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(dense, (x, kernel), (x, kernel))


@pytest.mark.parametrize("transform", ["scan", "checkpoint", "while"])
def test_inside_loops_and_recomputation(transform):
    x, kernel = normal(2, 4), normal(4, 4)

    def body(x):
        return jnp.tanh(dense(x, kernel))

    def loop(x):
        if transform == "scan":
            return jax.lax.scan(lambda x, _: (body(x), None), x, None, length=2)[0]
        if transform == "while":
            return jax.lax.fori_loop(0, jnp.int32(2), lambda _, x: body(x), x)
        step = jax.checkpoint(body, policy=jax.checkpoint_policies.dots_saveable)
        return step(step(x))

    jax.jit(loop)(x)  # traced with the written derivatives
    with plain_derivatives():
        got = jax.jvp(jax.jit(loop), (x,), (x,))
        close(got, jax.jvp(lambda x: body(body(x)), (x,), (x,)))


def test_half_precision_has_both_modes():
    """Scores and logits are float32 there, and their cotangents are not."""
    half = [x.astype(jnp.bfloat16) for x in OPERATIONS["attention"][1]]

    def scalar(*heads):
        return jnp.sum(jnp.sin(dot_product_attention(*heads).astype(jnp.float32)))

    gradient = jax.grad(scalar)(*half)
    with plain_derivatives():
        close(jax.grad(scalar)(*half).astype(jnp.float32), gradient.astype(jnp.float32), 5e-2)
        _, tangent = jax.jvp(lambda query: scalar(query, *half[1:]), half[:1], half[:1])
    expected = jnp.vdot(gradient.astype(jnp.float32), half[0].astype(jnp.float32))
    close(tangent, expected, 5e-2)
