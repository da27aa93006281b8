"""Written backward passes, and the way around them for forward-mode differentiation.

A `jax.custom_vjp` function has no forward mode. JAX 0.10 has two other tools, and both give less.
`jax.custom_jvp` alone leaves the backward pass to JAX's transposition, which makes the copies and
keeps the arrays that the written passes avoid. `jax.custom_derivatives.linear_call` inside its rule
takes a written transpose, but has no batching rule and no derivative with respect to its residuals:
`jax.vmap` of a gradient, and all second derivatives, would be lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax

# JAX traces and compiles anew where its value is another, so no cached trace has the other rules.
_plain_derivatives = jax.make_user_context(False)


def plain_derivatives() -> AbstractContextManager[None]:
    """A context in which the operations of this package have the derivatives that JAX finds itself.

    Inside, `jax.jvp`, `jax.linearize` and `jax.jacfwd` work, and reverse mode does too:

        with plain_derivatives():
            value, tangent = jax.jvp(loss, (params,), (direction,))

    Values are the same; gradients are too, up to rounding, but take more time and memory. Forward
    mode over reverse mode needs no context: `jax.hessian(loss)` and the Hessian's product with a
    vector, `jax.jvp(jax.grad(loss), (params,), (direction,))`, differentiate the written backward
    passes.

    The context counts where a function is traced. What `jax.linearize` and `jax.vjp` return may
    be called outside it. It holds for the current thread.
    """
    return _plain_derivatives(True)


def plain_derivatives_wanted() -> bool:
    """Whether the caller is inside `plain_derivatives`."""
    return _plain_derivatives.value


def with_backward_pass(
    function: Callable, forward: Callable, backward: Callable, nondiff_argnums: tuple[int, ...] = ()
) -> Callable:
    """`function` with a written backward pass, except inside `plain_derivatives`.

    Args:
      function: differentiable by JAX in both modes.
      forward: as for `jax.custom_vjp`; made of what JAX differentiates in both modes, so that the
        gradient can be differentiated forward. It must not call the function returned here.
      backward: as for `jax.custom_vjp`, of the same kind.
      nondiff_argnums: as for `jax.custom_vjp`.

    Returns:
      A function of the same positional arguments.
    """
    written = jax.custom_vjp(function, nondiff_argnums=nondiff_argnums)
    written.defvjp(forward, backward)

    @functools.wraps(function)
    def call(*arguments):
        return (function if plain_derivatives_wanted() else written)(*arguments)

    return call
