"""Custom backward passes, and a way around them for forward-mode differentiation.

A `jax.custom_vjp` function has no forward mode. JAX 0.10 offers two alternatives, both worse.
`jax.custom_jvp` alone leaves the backward pass to JAX's transposition, which makes the copies and
keeps the arrays that the custom passes avoid. `jax.custom_derivatives.linear_call` inside its rule
takes a custom transpose, but has no batching rule and no derivative with respect to its residuals:
`jax.vmap` of a gradient, and all second derivatives, would be lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import jax

# JAX retraces when its value changes, so no cached trace has the wrong rules.
_plain_derivatives = jax.make_user_context(False)


def plain_derivatives() -> AbstractContextManager[None]:
    """A context in which the operations of this package have JAX's own derivatives.

    Inside, `jax.jvp`, `jax.linearize` and `jax.jacfwd` work, and reverse mode does too:

        with plain_derivatives():
            value, tangent = jax.jvp(loss, (params,), (direction,))

    Values are the same; gradients are too, up to rounding, but take more time and memory. Forward
    mode over reverse mode needs no context: `jax.hessian(loss)` and the Hessian's product with a
    vector, `jax.jvp(jax.grad(loss), (params,), (direction,))`, differentiate the custom backward
    passes.

    The context matters when a function is traced; what `jax.linearize` and `jax.vjp` return may be
    called outside it. It applies to the current thread.
    """
    return _plain_derivatives(True)


def plain_derivatives_wanted() -> bool:
    """Whether the caller is inside `plain_derivatives`."""
    return _plain_derivatives.value


def with_backward_pass(
    function: Callable, forward: Callable, backward: Callable, nondiff_argnums: tuple[int, ...] = ()
) -> Callable:
    """`function` with a custom backward pass, except inside `plain_derivatives`.

    Args:
      function: differentiable by JAX in both modes.
      forward: as for `jax.custom_vjp`; differentiable by JAX in both modes, so that the gradient
        can be differentiated forward. It must not call the function returned here.
      backward: as for `jax.custom_vjp`, differentiable in the same way.
      nondiff_argnums: as for `jax.custom_vjp`.

    Returns:
      A function with the same positional arguments.
    """
    written = jax.custom_vjp(function, nondiff_argnums=nondiff_argnums)
    written.defvjp(forward, backward)

    @functools.wraps(function)
    def call(*arguments):
        return (function if plain_derivatives_wanted() else written)(*arguments)

    return call
