import functools

import jax
import jax.numpy as jnp
import pytest

from jaxformer.config import Config, DataConfig, MeshConfig
from jaxformer.data.batching import BatchShape
from jaxformer.data.pair_dataset import pair_spec
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.ops.attention_choice import Backend
from jaxformer.ops.attention_kernels import KERNELS, reference_attention, splash_attention
from jaxformer.ops.attention_mask import AttentionMask
from jaxformer.parallel.mesh import make_mesh
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.checks.attention_check import check_attention

SHAPE = BatchShape(source_length=8, target_length=6, rows=16, batches_per_epoch=3)


def run_config(implementation="xla", batching="buckets", **model):
    return Config(
        model=TransformerConfig(
            d_model=32, num_heads=2, attention_implementation=implementation, **model
        ),
        data=DataConfig(batching=batching),
    )


def check(config, shapes, mesh, *, evaluated=(), **how):
    """`check_attention` of a translation model; evaluation packs no rows."""
    packed = config.data.batching == "packed"
    return check_attention(
        Translation(config.model, pad_id=0, bos_id=2),
        [pair_spec(shape, packed=packed) for shape in shapes],
        mesh,
        evaluated=[pair_spec(shape, packed=False) for shape in evaluated],
        **how,
    )


@pytest.fixture
def mesh():
    return make_mesh(MeshConfig(), devices=jax.devices()[:1])


def test_the_reference_is_not_compared(mesh):
    line = check(run_config("auto"), [SHAPE], mesh, kernels={})
    assert line == (
        "attention encoder reference (no fused kernel for cpu); decoder reference (no fused "
        "kernel for cpu); cross reference (no fused kernel for cpu)"
    )
    line = check(run_config("reference"), [SHAPE], mesh, kernels={})
    assert line.count("reference (as configured)") == 3


@pytest.mark.parametrize("batching", ["buckets", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_right_implementation_passes(batching, dtype, mesh):
    line = check(run_config(batching=batching, dtype=dtype), [SHAPE], mesh)
    assert line.startswith("attention encoder xla (as configured); decoder xla (as configured);")
    assert "; 3 compared with the reference in " in line


def test_splash_passes_on_a_mesh():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    kernels = {"splash": functools.partial(splash_attention, interpret=True)}
    config = run_config("splash", "packed")
    line = check(config, [SHAPE], mesh, kernels=kernels, backend=Backend("tpu"))
    assert line.count("splash (as configured)") == 3


def test_shapes_may_differ_in_what_they_use(mesh):
    """Odd lengths go to the reference; each attention is compared once."""
    seen = []

    def watch(query, key, value, attention_mask):
        seen.append((query.shape[1], key.shape[1]))
        return reference_attention(query, key, value, attention_mask)

    shapes = [SHAPE, SHAPE._replace(rows=8), SHAPE._replace(target_length=7)]
    line = check(
        run_config("auto", dtype="bfloat16"),
        shapes,
        mesh,
        kernels={"cudnn": watch},
        backend=Backend("gpu", (9, 0)),
    )
    assert sorted(seen) == [(6, 6), (6, 8), (8, 8)]
    assert line.startswith(
        "attention encoder cudnn (fused, for gpu); decoder cudnn (fused, for gpu) for 1 of the "
        "shapes, reference (cuDNN takes even lengths, not 7 queries and 7 keys) for 1 of the "
        "shapes; "
    )


def test_attention_dropout_trains_on_the_reference_and_evaluates_on_the_kernel(mesh):
    gpu = Backend("gpu", (9, 0))
    config = run_config("auto", dtype="bfloat16", attention_dropout_rate=0.1)
    kernels = {"cudnn": reference_attention}
    line = check(config, [SHAPE], mesh, kernels=kernels, backend=gpu)
    assert line.count("reference (cudnn has no attention dropout)") == 3
    assert "3 compared" in line


def test_lengths_that_only_evaluation_has_are_compared_as_well(mesh):
    seen = []

    def watch(query, key, value, attention_mask):
        seen.append((query.shape[1], key.shape[1]))
        return reference_attention(query, key, value, attention_mask)

    line = check(
        run_config("auto", dtype="bfloat16"),
        [SHAPE],
        mesh,
        evaluated=[SHAPE, SHAPE._replace(source_length=12, target_length=10)],
        kernels={"cudnn": watch},
        backend=Backend("gpu", (9, 0)),
    )
    assert sorted(seen) == [(6, 6), (6, 8), (8, 8), (10, 10), (10, 12), (12, 12)]
    assert line.count("cudnn (fused, for gpu)") == 3 and "; 6 compared" in line


def test_batches_of_evaluation_are_compared_where_those_of_training_are_packed(mesh):
    seen = []

    def watch(query, key, value, attention_mask):
        seen.append((query.shape[1], key.shape[1]))
        return reference_attention(query, key, value, attention_mask)

    setup = dict(kernels={"cudnn": watch}, backend=Backend("gpu", (9, 0)))
    evaluated = [SHAPE._replace(source_length=12, target_length=10)]
    config = run_config("auto", "packed", dtype="bfloat16")
    line = check(config, [SHAPE], mesh, evaluated=evaluated, **setup)
    assert line.count("reference (packed rows need segments") == 3
    assert sorted(seen) == [(10, 10), (10, 12), (12, 12)]
    assert "; 3 compared" in line
    setup["kernels"] = {"cudnn": return_nan}
    with pytest.raises(InputError, match="12 queries and 12 keys, error of the output: nan"):
        check(config, [SHAPE], mesh, evaluated=evaluated, **setup)


@pytest.mark.parametrize(
    ("model", "batching", "reason"),
    [
        ({"dtype": "float32"}, "buckets", "cuDNN takes bfloat16 or float16, not float32"),
        ({"dtype": "bfloat16"}, "packed", "segments"),
        (
            {"dtype": "bfloat16", "attention_dropout_rate": 0.1},
            "buckets",
            "cudnn has no attention dropout",
        ),
    ],
)
def test_an_impossible_configuration_is_refused(model, batching, reason, mesh):
    config = run_config("cudnn", batching, **model)
    with pytest.raises(InputError) as caught:
        check(config, [SHAPE], mesh, kernels={}, backend=Backend("gpu", (9, 0)))
    assert "model.attention_implementation='cudnn'" in str(caught.value)
    assert reason in str(caught.value)


def leak(query, key, value, attention_mask):
    """Far below what rounding may do, but it carries what must stay hidden."""
    return reference_attention(query, key, value, attention_mask) + 1e-6 * value.mean(
        1, keepdims=True
    )


def leak_gradient(query, key, value, attention_mask):
    seen = 1e-6 * value.sum(1, keepdims=True)
    return reference_attention(query, key, value, attention_mask) + (
        seen - jax.lax.stop_gradient(seen)
    )


def ignore_causality(query, key, value, attention_mask):
    attention_mask = AttentionMask(False, *jax.tree.leaves(attention_mask))
    return reference_attention(query, key, value, attention_mask)


def return_nan(query, key, value, attention_mask):
    out = reference_attention(query, key, value, attention_mask)
    return out.at[0, -1, 0, 0].set(jnp.nan)


def return_nan_gradients(query, key, value, attention_mask):
    return reference_attention(query, key, value, attention_mask) + jnp.sqrt(0.0 * key[:, :1])


def wrong_gradient(query, key, value, attention_mask):
    half = 0.5 * (key + jax.lax.stop_gradient(key))
    return reference_attention(query, half, value, attention_mask)


def cannot_compile(query, key, value, attention_mask):
    raise NotImplementedError("no kernel for this shape")


@pytest.mark.parametrize(
    ("kernel", "batching", "message"),
    [
        (
            leak,
            "buckets",
            "encoder attention with 8 queries and 8 keys, outputs that masked tokens",
        ),
        (leak, "packed", "encoder attention with 8 queries and 8 keys, outputs that masked tokens"),
        (
            leak_gradient,
            "packed",
            "encoder attention with 8 queries and 8 keys, gradients of masked",
        ),
        (
            ignore_causality,
            "buckets",
            "decoder attention with 6 queries and 6 keys, error of the out",
        ),
        (return_nan, "buckets", "error of the output: nan, allowed 0.01"),
        (return_nan_gradients, "buckets", "error of the gradient of the key: nan, allowed 0.01"),
        (wrong_gradient, "buckets", "error of the gradient of the key: 0.5, allowed 0.01"),
        (cannot_compile, "buckets", "no kernel for this shape"),
    ],
)
def test_a_wrong_implementation_stops_the_run(kernel, batching, message, mesh):
    config = run_config("xla", batching)
    with pytest.raises(InputError) as caught:
        check(config, [SHAPE], mesh, kernels=KERNELS | {"xla": kernel})
    assert str(caught.value).startswith("xla is not usable here: ")
    assert message in str(caught.value)
    assert str(caught.value).endswith("--config.model.attention_implementation=reference")


def test_an_unknown_implementation_is_refused():
    with pytest.raises(InputError) as caught:
        run_config("cudn")
    assert str(caught.value) == (
        "model.attention_implementation='cudn' is not one of auto, reference, xla, cudnn, splash; "
        "nearest: cudnn"
    )
