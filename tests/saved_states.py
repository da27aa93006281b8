"""Small training states whose numbers follow from their step, and checkpoints of them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.storage.checkpoint import Checkpointer
from jaxformer.storage.measurement import Ranking
from jaxformer.tasks.translation import TranslationTask
from jaxformer.training.state import TrainState


def make_state(step, *, ema=False):
    """A state whose numbers all follow from its step."""
    params = {
        "encoder": {"kernel": jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3) * step},
        "token_embedding": {"embedding": jnp.full((4, 2), 0.5 + step, jnp.bfloat16)},
    }
    moments = jax.tree.map(lambda p: p + 1, params)
    return TrainState(
        step=jnp.int32(step),
        params=params,
        opt_state=(jnp.int32(step), moments),
        ema_params=jax.tree.map(lambda p: -p, params) if ema else None,
    )


def abstract(tree):
    """Shapes, dtypes and shardings."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def shapes(tree):
    """Shapes and dtypes alone."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def ranked_by(metric):
    """The ranking of a translation run by one of its metrics."""
    return Ranking(TranslationTask.selection_metrics, metric)


def save_steps(directory, metrics, *, keep=9, best_metric="bleu", ema=False, report=print):
    """Save the steps 1, 2, ... with an evaluation each, or None for none."""
    ranking = ranked_by(best_metric)
    with Checkpointer(directory, keep=keep, ranking=ranking, report=report) as checkpointer:
        for step, one in enumerate(metrics, 1):
            checkpointer.save(step, make_state(step, ema=ema), {"n": step}, one)


def assert_same(one, other):
    """Equal bits in equal dtypes."""
    jax.tree.map(np.testing.assert_array_equal, one, other)
    assert jax.tree.map(lambda x: x.dtype, one) == jax.tree.map(lambda x: x.dtype, other)
