"""Over `data` and `fsdp` go parameters, gradients and embedded tokens, whatever the batch."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxformer.config import MeshConfig, OptimizerConfig
from jaxformer.model_config import TransformerConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.parallel.sharding import (
    batch_sharding,
    parameter_shardings,
    replicated,
    shard_like_batch,
)
from jaxformer.planning.collectives import read_collectives
from jaxformer.tasks.translation_loss import Translation
from jaxformer.training.program import TrainingProgram

MODEL = TransformerConfig(
    vocab_size=64, num_encoder_layers=1, num_decoder_layers=1, d_model=32, d_ff=64, num_heads=8
)
LENGTH = 12
PACKED = tuple(
    f"{side}_{what}" for side in ("inputs", "targets") for what in ("segments", "positions")
)
LEARNED = {"positions": "learned", "max_length": 24}
# (data, fsdp, tensor), changes of the model, whether rows are packed
CASES = {
    "data x fsdp x tensor": ((2, 2, 2), {}, False),
    "fsdp, scanned layers": ((1, 8, 1), {"scan_layers": True, "num_decoder_layers": 2}, False),
    "data x fsdp, learned positions of packed rows": ((2, 4, 1), LEARNED, True),
}


def batch_shapes(mesh, rows, packed):
    shape = jax.ShapeDtypeStruct((rows, LENGTH), jnp.int32, sharding=batch_sharding(mesh))
    return dict.fromkeys(("inputs", "targets", *(PACKED if packed else ())), shape)


def train_step(mesh, config, batch):
    """The program text of an update."""
    objective = Translation(config, pad_id=0, bos_id=2, label_smoothing=0.1)
    program = TrainingProgram(objective, OptimizerConfig(), num_steps=20)
    key = jax.eval_shape(lambda: jax.random.key(0))
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=replicated(mesh))
    step = program.train_step(mesh)
    return step.lower(program.abstract(mesh), batch, key).compile().as_text()


def evaluation_step(mesh, config, batch):
    """The program text of the sums of an evaluation."""
    task = Translation(config, pad_id=0, bos_id=2, label_smoothing=0.1)
    params = jax.eval_shape(task.init, jax.random.key(0))
    step = jax.jit(
        lambda params, batch: task.loss_sums(params, batch, mesh=mesh),
        in_shardings=(parameter_shardings(params, mesh), batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
    return step.lower(params, batch).compile().as_text()


def sent(text, mesh):
    """Bytes that a device sends over `data` and `fsdp`, by the kind of message."""
    kinds = collections.Counter()
    for message in read_collectives(text, mesh.size):
        if message.axes(dict(mesh.shape)) != ("tensor",):
            kinds[message.kind] += message.sent
    return kinds


def check_growth(step, mesh, config, packed, errors):
    """Compile for some rows and for twice as many; `errors` has what XLA says meanwhile."""
    rows = 32
    batches = (batch_shapes(mesh, count, packed) for count in (rows, 2 * rows))
    one, two = (sent(step(mesh, config, batch), mesh) for batch in batches)
    assert "rematerialization" not in errors.readouterr().err
    assert two.pop("all-to-all") == 2 * one.pop("all-to-all") > 0.0  # the embedded tokens
    ids = 4 * rows * LENGTH * (6 if packed else 2)  # bytes of the arrays of the batch
    assert 0 <= sum(two.values()) - sum(one.values()) <= 2 * ids < 4 * rows * LENGTH * MODEL.d_model


@pytest.mark.parametrize("case", CASES)
def test_a_train_step_gathers_no_activation(case, capfd):
    (data, fsdp, tensor), changes, packed = CASES[case]
    mesh = make_mesh(MeshConfig(data=data, fsdp=fsdp, tensor=tensor))
    check_growth(train_step, mesh, dataclasses.replace(MODEL, **changes), packed, capfd)


def test_an_evaluation_gathers_no_activation(capfd):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    check_growth(evaluation_step, mesh, MODEL, False, capfd)


def look_up(table, ids):
    return shard_like_batch(table[ids])


@pytest.mark.parametrize(
    ("sizes", "rows", "width", "expected"),
    [
        ((2, 4, 1), 16, 8, (("data", "fsdp"),)),
        ((2, 4, 1), 12, 8, None),  # 8 parts do not divide the rows
        ((2, 4, 1), 16, 6, None),  # the table is whole
        ((8, 1, 1), 16, 8, None),
    ],
)
def test_lookups_are_cut_like_the_batch_where_the_table_is_cut(sizes, rows, width, expected):
    mesh = make_mesh(MeshConfig(**dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))))
    table, ids = np.arange(5.0 * width).reshape(5, width), np.arange(rows * 3).reshape(rows, 3) % 5
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        jaxpr = jax.make_jaxpr(look_up)(table, ids)
    specs = [
        equation.params["sharding"].spec
        for equation in jaxpr.eqns
        if equation.primitive.name == "sharding_constraint"
    ]
    if expected is None:
        assert specs == []
    else:
        assert specs == [PartitionSpec("data", None, "fsdp"), PartitionSpec(*expected)]


def test_without_a_mesh_or_inside_a_shard_map_lookups_stay_as_they_are():
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))
    table, ids = jnp.arange(40.0).reshape(5, 8), jnp.arange(48).reshape(16, 3) % 5
    np.testing.assert_array_equal(look_up(table, ids), table[ids])
    mapped = jax.shard_map(
        look_up,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(("data", "fsdp"))),
        out_specs=PartitionSpec(("data", "fsdp")),
    )
    np.testing.assert_array_equal(jax.jit(mapped)(table, ids), table[ids])
