"""Messages of compiled programs: hand-written ones, and one that XLA compiled."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.config import MeshConfig
from jaxformer.parallel.mesh import make_mesh
from jaxformer.planning.collectives import Collective, read_collectives, read_group
from jaxformer.planning.hlo_text import shape_bytes

PROGRAM = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%all-reduce-scatter.1 (p: f32[16,4]) -> f32[2,4] {
  %p = f32[16,4]{1,0:T(8,128)} parameter(0)
  %all-reduce.7 = f32[16,4]{1,0} all-reduce(%p), channel_id=1, replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %cut = f32[2,4]{1,0} dynamic-slice(%all-reduce.7), dynamic_slice_sizes={2,4}
}

%wrapped (q: f32[2]) -> f32[8] {
  %q = f32[2]{0} parameter(0)
  ROOT %ag = f32[8]{0} all-gather(%q), replica_groups=[2,4]<=[2,4], dimensions={0}
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %moved = f32[8]{0} collective-permute(%x), source_target_pairs={{0,4},{4,0},{1,5}}
  ROOT %next = (s32[], /*index=1*/f32[8]{0}) tuple(%s, %moved)
}

%cond (s: (s32[], f32[8])) -> pred[] {
  ROOT %go = pred[] constant(true)
}

%counted (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]{0}) parameter(0)
  %end.2 = s32[]{:T(128)} constant(5)
  %count = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %lt = pred[]{:T(512)} compare(%count, %end.2), direction=LT
}

%twice (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %by.2 = s32[]{:T(128)} constant(2)
  %count.2 = s32[]{:T(128)} get-tuple-element(%s), index=0
  %other = s32[]{:T(128)} add(%count.2, %count.2)
  %more.2 = s32[]{:T(128)} add(%count.2, %by.2), metadata={op_name="a, b)"}
  %y = f32[8]{0} get-tuple-element(%s), index=1
  %moved.2 = f32[8]{0} collective-permute(%y), source_target_pairs={{2,3},{3,2}}
  ROOT %next.2 = (s32[], /*index=1*/f32[8]{0}) tuple(%more.2, /*index=1*/%moved.2)
}

%cheap (z: f32[8]) -> f32[8] {
  ROOT %z = f32[8]{0} parameter(0)
}

%dear (z: f32[8]) -> f32[8] {
  %z = f32[8]{0} parameter(0)
  ROOT %sum.2 = f32[8]{0} all-reduce(%z), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add
}

%piece (q: f32[2]) -> f32[16] {
  %q = f32[2]{0} parameter(0)
  ROOT %ag.5 = f32[16]{0} all-gather(%q), channel_id=9, replica_groups=[1,8]<=[8], dimensions={0}
}

%both (q: f32[2]) -> f32[16] {
  %q = f32[2]{0} parameter(0)
  ROOT %piece.4 = f32[16]{0} fusion(%q), kind=kCustom, calls=%piece
}

%start.6 (q: f32[2]) -> (f32[24], u32[]) {
  %q = f32[2]{0} parameter(0)
  %ag.6 = f32[24]{0} all-gather(%q), channel_id=10, replica_groups=[1,8]<=[8], dimensions={0}
  ROOT %custom-call.1 = (f32[24]{0}, u32[]{:S(2)}) custom-call(%ag.6), custom_call_target="AsyncCollectiveStart"
}

%next.6 (q: f32[2]) -> f32[24] {
  %q = f32[2]{0} parameter(0)
  ROOT %ag.7 = f32[24]{0} all-gather(%q), channel_id=10, replica_groups=[1,8]<=[8], dimensions={0}
}

%long (s: (s32[], f32[24])) -> (s32[], f32[24]) {
  %s = (s32[], f32[24]{0}) parameter(0)
  ROOT %more = (s32[], f32[24]{0}) fusion(%s), kind=kCustom, calls=%next.6
}

ENTRY %main.3 (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %scatter = f32[2,4]{1,0:T(8,128)S(1)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %scatter.2 = f32[2,4]{1,0:T(8,128)S(1)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %start = ((f32[2]{0}), f32[8]{0}, s32[]{:S(2)}) async-start(%x), calls=%wrapped
  %done = f32[8]{0} async-done(%start), calls=%wrapped
  %ars = (f32[8]{0}, bf16[6]{0}) all-reduce-start(%x, %x), replica_groups={}, to_apply=%add
  %ard = (f32[8]{0}, bf16[6]{0}) all-reduce-done(%ars)
  %ags = (f32[2]{0}, f32[8]{0}) all-gather-start(%x), replica_groups=mesh['a'=2,'b'=4] {'b'}
  %begin = (f32[16]{0}, u32[]{:S(2)}) fusion(%x), kind=kCustom, calls=%piece
  %beside = (f32[16]{0}, f32[8]{0}) fusion(%begin), kind=kCustom, calls=%both
  %end = f32[16]{0} fusion(%beside), kind=kCustom, calls=%piece
  %chain = (f32[24]{0}, u32[]{:S(2)}) fusion(%x), kind=kCustom, calls=%start.6
  %loop.4 = (s32[], f32[24]{0}) while(%chain), condition=%cond, body=%long, backend_config={"known_trip_count":{"n":"6"}}
  %chained = f32[24]{0} fusion(%loop.4), kind=kCustom, calls=%next.6
  %alone = f32[8]{0} all-reduce(%x), replica_groups=[8,1]<=[8], to_apply=%add
  %loop = (s32[], f32[8]{0}) while(%x), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"6"}}
  %loop.2 = (s32[], f32[8]{0}) while(%x), condition=%cond, body=%body
  %loop.3 = (s32[], f32[8]{0}) while(%x), condition=%counted, body=%body
  %loop.5 = (s32[], f32[8]{0}) while(%x), condition=%counted, body=%twice
  ROOT %chosen = f32[8]{0} conditional(%x, %x), branch_computations={%cheap, %dear}
}
"""  # noqa: E501

EVERY = tuple(range(8))


def test_each_collective_of_a_program_is_found_as_often_as_it_runs():
    found = read_collectives(PROGRAM, 8, unknown_trips=3)
    assert set(found) == {
        Collective("reduce-scatter", EVERY, 16 * 4 * 4, 2),
        Collective("all-gather", (0, 1, 2, 3), 8 * 4, 2),  # async-start, all-gather-start
        Collective("all-gather", EVERY, 16 * 4, 1),  # in three pieces
        Collective("all-gather", EVERY, 24 * 4, 1),  # its pieces are in a loop
        Collective("all-reduce", EVERY, 8 * 4 + 6 * 2, 1),
        Collective("collective-permute", (0, 4), 8 * 4, 6 + 3 + 5),
        Collective("collective-permute", (2, 3), 8 * 4, 3),  # counts 0, 2, 4 up to 5
        Collective("all-reduce", (0, 1), 8 * 4, 1),
    }
    assert [one.sent for one in found] == sorted((one.sent for one in found), reverse=True)
    once = read_collectives(PROGRAM, 8)
    assert Collective("collective-permute", (0, 4), 32, 6 + 1 + 5) in once


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all-reduce", 2 * 3 / 4 * 1000 * 5),
        ("all-gather", 3 / 4 * 1000 * 5),
        ("reduce-scatter", 3 / 4 * 1000 * 5),
        ("all-to-all", 3 / 4 * 1000 * 5),
        ("collective-permute", 1000 * 5),
    ],
)
def test_bytes_sent_by_hand(kind, sent):
    assert Collective(kind, (0, 2, 4, 6), 1000, 5).sent == sent


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups={{1,3},{0,2}}", (1, 3)),
        ("replica_groups={}, to_apply=%add", EVERY),
        ("replica_groups=[2,4]<=[8]", (0, 1, 2, 3)),
        ("replica_groups=[2,4]<=[4,2]T(1,0), x", (0, 2, 4, 6)),
        ("replica_groups=[4,2]<=[2,2,2]T(2,0,1)", (0, 2)),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=2] {'axis_0','axis_1'}", tuple(range(16))),
        ("replica_groups=mesh['x'=4,'y'=2] {'x'}", (0, 2, 4, 6)),
        ("replica_groups=mesh['x'=8] {'x':(2)4}", (0, 1, 2, 3)),
        ("replica_groups=mesh['x'=8] {'x':(1)4}", (0, 2, 4, 6)),
        ("replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'y'}", (0, 4)),
        ("source_target_pairs={{5,1},{1,5}}", (1, 5)),
    ],
)
def test_groups_in_each_notation(text, group):
    assert read_group(text, 8) == group


def test_unknown_texts_are_refused():
    with pytest.raises(ValueError, match="unknown notation.*replica_groups=@sharding"):
        read_group("replica_groups=@sharding<1>", 8)
    with pytest.raises(ValueError, match="no ENTRY computation"):
        read_collectives("HloModule empty\n", 8)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ("f32[1024,512]{1,0:T(8,128)}", [2**21]),
        ("(bf16[3]{0}, pred[5]{0}, s32[])", [6, 5, 4]),
        ("f8e4m3fn[7]{0}", [7]),
        ("s4[3]{0}", [2]),
    ],
)
def test_bytes_of_shapes(shape, sizes):
    assert shape_bytes(shape) == sizes


def test_the_axes_of_a_group_are_those_along_which_it_extends():
    shape = {"data": 2, "fsdp": 2, "tensor": 2}
    axes = {(0, 4): ("data",), (0, 2): ("fsdp",), (0, 1): ("tensor",)}
    axes[0, 2, 4, 6] = ("data", "fsdp")
    for group, names in axes.items():
        assert Collective("all-gather", group, 1, 1).axes(shape) == names


def test_a_compiled_program_sends_what_its_shardings_say():
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))

    def place(shape, *spec):
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def f(kernel, rows):  # rows over both axes, the kernel cut over fsdp
        def layer(x, _):
            return jnp.tanh(x @ kernel), None

        return jnp.sum(jax.lax.scan(layer, rows, length=3)[0])

    weights, rows = place((16, 16), None, "fsdp"), place((64, 16), ("data", "fsdp"))
    text = jax.jit(f).lower(weights, rows).compile().as_text()
    found = {(c.kind, c.axes(dict(mesh.shape))): c for c in read_collectives(text, 8)}
    gathered = found["all-gather", ("fsdp",)]
    assert (gathered.size, gathered.group) == (16 * 16 * 4, (0, 1, 2, 3))
    assert gathered.count in (1, 3)  # before the loop, or in each round
    assert found["all-reduce", ("data", "fsdp")].size == 4
