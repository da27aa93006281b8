import re

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from jaxformer.config import MeshConfig
from jaxformer.errors import InputError
from jaxformer.ops.attention_choice import Backend, choose, current_backend, refusal
from jaxformer.ops.attention_mask import AttentionMask
from jaxformer.parallel.mesh import make_mesh

HOPPER = Backend("gpu", (9, 0))
TPU = Backend("tpu")
LENGTHS = np.array([256, 100], np.int32)
SEGMENTS = np.ones((2, 256), np.int32)
MASK = np.ones((1, 1, 1, 1), bool)


def call(dtype="bfloat16", head_dim=64, queries=256, keys=256, **fields):
    """Arguments of `choose` and `refusal` after the backend."""
    shapes = [(2, n, 2, head_dim) for n in (queries, keys)]
    return *(jax.ShapeDtypeStruct(x, dtype) for x in shapes), AttentionMask(**fields)


def test_auto_chooses_by_platform():
    padded = call(key_lengths=LENGTHS)
    packed = call(query_segments=SEGMENTS, key_segments=SEGMENTS)
    for backend, call_, expected in (
        (Backend("cpu"), padded, "reference"), (HOPPER, padded, "cudnn"), (TPU, packed, "splash"),
    ):  # fmt: skip
        choice = choose("auto", backend, *call_)
        assert choice.implementation == expected and backend.platform in choice.reason
    assert choose("auto", HOPPER, *packed).implementation == "reference"
    short = choose("auto", TPU, *call(queries=64))
    assert short.implementation == "reference" and "128 tokens" in short.reason
    assert choose("auto", HOPPER, *padded, dropout=True).implementation == "reference"
    assert choose("auto", Backend("rocm"), *padded).implementation == "reference"
    assert current_backend() == Backend("cpu", unplaced=True)
    with jax.set_mesh(make_mesh(MeshConfig())):
        assert current_backend() == Backend("cpu", unplaced=False)


def test_a_program_for_another_platform_gets_the_attention_of_that():
    device = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh((8,), ("data",), (AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert current_backend() == TPU
        assert choose("auto", current_backend(), *call()).implementation == "splash"


@pytest.mark.parametrize(
    ("implementation", "backend", "changes", "modes", "reason"),
    [
        ("cudnn", Backend("cpu"), {}, {}, "NVIDIA GPU.* cpu"),
        ("cudnn", Backend("gpu", (7, 5)), {}, {}, "8.0.* 7.5"),
        ("cudnn", HOPPER, {"dtype": "float32"}, {}, "bfloat16 or float16.* float32"),
        ("cudnn", HOPPER, {"head_dim": 20}, {}, "head_dim .* 256.* 20"),
        ("cudnn", Backend("gpu", (8, 6)), {"head_dim": 136}, {}, "head_dim .* 128.* 136"),
        ("cudnn", HOPPER, {"queries": 7}, {}, "even .* 7 queries.* 256 keys"),
        ("cudnn", HOPPER, {"query_segments": SEGMENTS}, {}, "packed rows .*cuDNN"),
        ("cudnn", HOPPER, {"mask": MASK}, {}, "cudnn .*bool"),
        ("cudnn", HOPPER, {}, {"dropout": True}, "cudnn .*dropout"),
        ("cudnn", HOPPER, {}, {"return_weights": True}, "cudnn .*weights"),
        ("splash", HOPPER, {}, {}, "TPU.* gpu"),
        ("splash", TPU, {"dtype": "float16"}, {}, "bfloat16 or float32.* float16"),
        ("splash", TPU._replace(unplaced=True), {}, {}, "jax.set_mesh"),
        ("splash", TPU, {"mask": MASK}, {}, "splash .*bool"),
        ("xla", TPU, {"dtype": "float16"}, {}, "float16 .*tpu"),
        ("xla", Backend("cpu"), {}, {"dropout": True}, "xla .*dropout"),
        ("xla", Backend("cpu"), {}, {"return_weights": True}, "xla .*weights"),
    ],
)
def test_each_refusal(implementation, backend, changes, modes, reason):
    arguments = backend, *call(**changes)
    assert re.search(reason, refusal(implementation, *arguments, **modes))
    assert refusal("reference", *arguments, **modes) == ""
    assert choose(implementation, *arguments, **modes).implementation == "reference"
    with pytest.raises(InputError) as caught:
        choose(implementation, *arguments, **modes, strict=True)
    message = str(caught.value)
    assert message.startswith(f"model.attention_implementation='{implementation}' ")
    assert re.search(reason, message)
    assert message.endswith("--config.model.attention_implementation=auto")


def test_what_is_not_refused():
    assert refusal("xla", Backend("cpu"), *call(dtype="float32", mask=MASK)) == ""
    assert refusal("cudnn", HOPPER, *call(dtype="float16", head_dim=256)) == ""
    assert refusal("cudnn", Backend("gpu", (8, 0)), *call(head_dim=128, causal=True)) == ""
    assert refusal("splash", TPU, *call(dtype="float32", head_dim=20, queries=7)) == ""
    assert refusal("xla", HOPPER, *call(dtype="float16")) == ""
    assert choose("xla", TPU, *call(), strict=True) == ("xla", "as configured")


@pytest.mark.parametrize("changes", [{}, {"mask": MASK}])
def test_a_name_that_is_no_implementation_is_refused(changes):
    """With a mask it fell back to the reference without a word."""
    with pytest.raises(InputError, match="implementation='flash'.*reference, xla, cudnn, splash"):
        choose("flash", Backend("cpu"), *call(**changes))
