import jax
import pytest
from jax.sharding import AxisType

from jaxformer.config import MeshConfig
from jaxformer.errors import InputError
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import batch_parts, check_divides, describe_mesh, make_mesh


@pytest.mark.parametrize(
    ("sizes", "expected", "parts"),
    [
        ({}, (8, 1, 1), 8),
        ({"data": 8}, (8, 1, 1), 8),
        ({"data": 2, "fsdp": -1}, (2, 4, 1), 8),
        ({"data": 2, "fsdp": 2, "tensor": -1}, (2, 2, 2), 4),
        ({"data": -1, "tensor": 8}, (1, 1, 8), 1),
    ],
)
def test_minus_one_takes_the_rest(sizes, expected, parts):
    mesh = make_mesh(MeshConfig(**sizes))
    assert tuple(mesh.shape.items()) == tuple(
        zip(("data", "fsdp", "tensor"), expected, strict=True)
    )
    assert batch_parts(mesh) == parts
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert set(mesh.devices.flat) == set(jax.devices())


def test_given_devices_are_used():
    mesh = make_mesh(MeshConfig(), jax.devices()[2:4])
    assert list(mesh.devices.flat) == jax.devices()[2:4]
    assert mesh.shape["data"] == 2


@pytest.mark.parametrize(
    "sizes", [{"data": 4}, {"data": 3, "fsdp": -1}, {"data": 16}, {"data": 8, "tensor": 2}]
)
def test_sizes_that_do_not_fill_the_devices_are_refused(sizes):
    config = MeshConfig(**sizes)
    with pytest.raises(InputError, match=f"{config} .*8 devices.* -1 ") as refused:
        make_mesh(config)
    assert str(refused.value).startswith(f"mesh.data={config.data} x mesh.fsdp={config.fsdp} x ")


@pytest.mark.parametrize("sizes", [{"data": 0}, {"fsdp": -2}, {"data": -1, "fsdp": -1}])
def test_impossible_sizes_are_refused(sizes):
    named = ".*".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
    with pytest.raises(InputError, match=f"{named}.*at least 1.* -1 "):
        MeshConfig(**sizes)


@pytest.mark.parametrize(
    ("sizes", "model", "problem", "repair"),
    [
        ({"fsdp": 8}, {"d_model": 36}, ("mesh.fsdp=8 ", "model.d_model=36"), (4, 1)),
        ({"tensor": 4}, {"num_heads": 2}, ("mesh.tensor=4 ", "model.num_heads=2"), (1, 2)),
        ({"tensor": 8}, {"d_ff": 60}, ("mesh.tensor=8 ", "model.d_ff=60"), (1, 2)),
    ],
)
def test_an_axis_that_would_cut_nothing_is_refused(sizes, model, problem, repair):
    whole = {"d_model": 64, "num_heads": 2, "d_ff": 64}
    mesh = make_mesh(MeshConfig(**sizes))
    with pytest.raises(InputError) as refused:
        check_divides(TransformerConfig(**whole | model), mesh)
    fsdp, tensor = repair
    for words in (*problem, f"mesh.fsdp={fsdp} ", f"mesh.tensor={tensor}"):
        assert words in str(refused.value)
    check_divides(
        TransformerConfig(**whole | model), make_mesh(MeshConfig(fsdp=fsdp, tensor=tensor))
    )


def test_description():
    mesh = make_mesh(MeshConfig(data=4, fsdp=2))
    assert describe_mesh(mesh) == "8 x cpu as data=4 fsdp=2 tensor=1"
