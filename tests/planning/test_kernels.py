"""The kernels of a GPU program, counted in a text that is small enough to count by hand."""

import pytest

from jaxformer.planning.kernels import Kernel, read_kernels

PROGRAM = """HloModule jit_step

%fused_add (param_0: f32[8,4], param_1: f32[8,4]) -> f32[8,4] {
  %param_0 = f32[8,4]{1,0} parameter(0)
  %param_1 = f32[8,4]{1,0} parameter(1)
  ROOT %add.1 = f32[8,4]{1,0} add(%param_0, %param_1)
}

%fused_rows (table: f32[1000,4], ids: s32[8]) -> f32[8,4] {
  %table = f32[1000,4]{1,0} parameter(0)
  %ids = s32[8]{0} parameter(1)
  ROOT %rows = f32[8,4]{1,0} gather(%table, %ids), offset_dims={1}
}

%fused_update (whole: f32[100,4], part: f32[8,4], at: s32[]) -> f32[100,4] {
  %whole = f32[100,4]{1,0} parameter(0)
  %part = f32[8,4]{1,0} parameter(1)
  %at = s32[] parameter(2)
  ROOT %update = f32[100,4]{1,0} dynamic-update-slice(%whole, %part, %at)
}

%condition (counter: (s32[])) -> pred[] {
  %counter = (s32[]) parameter(0)
  %now = s32[] get-tuple-element(%counter), index=0
  %end = s32[] constant(5)
  ROOT %less = pred[] compare(%now, %end), direction=LT
}

%body (state: (s32[])) -> (s32[]) {
  %state = (s32[]) parameter(0)
  %before = s32[] get-tuple-element(%state), index=0
  %one = s32[] constant(1)
  %after = s32[] add(%before, %one)
  ROOT %next = (s32[]) tuple(%after)
}

%triton (a: bf16[8,16], b: bf16[16,4]) -> bf16[8,4] {
  %a = bf16[8,16]{1,0} parameter(0)
  %b = bf16[16,4]{1,0} parameter(1)
  ROOT %dot = bf16[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[8,4], y: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[8,4]{1,0} parameter(1)
  %big = f32[1000,4]{1,0} parameter(2)
  %which = s32[8]{0} parameter(3)
  %cache = f32[100,4]{1,0} parameter(4)
  %place = s32[] parameter(5)
  %left = bf16[8,16]{1,0} parameter(6)
  %right = bf16[16,4]{1,0} parameter(7)
  %sum = f32[8,4]{1,0} fusion(%x, %y), kind=kLoop, calls=%fused_add
  %looked_up = f32[8,4]{1,0} fusion(%big, %which), kind=kLoop, calls=%fused_rows
  %written = f32[100,4]{1,0} fusion(%cache, %sum, %place), kind=kLoop, calls=%fused_update
  %total = f32[8,4]{1,0} fusion(%sum, %y), kind=kInput, calls=%fused_add
  %product = bf16[8,4]{1,0} fusion(%left, %right), kind=kCustom, calls=%triton, \
backend_config={"fusion_backend_config":{"kind":"__triton_nested_gemm_fusion"}}
  %heads = (bf16[8,4]{1,0}, u8[0]{0}) custom-call(%product), \
custom_call_target="__cudnn$fmhaSoftmax"
  %reduced = f32[8,4]{1,0} all-reduce(%total), replica_groups={{0,1}}, to_apply=%fused_add
  %zero = s32[] constant(0)
  %start = (s32[]) tuple(%zero)
  %loop = (s32[]) while(%start), condition=%condition, body=%body
  ROOT %result = f32[8,4]{1,0} copy(%reduced)
}
"""
ROWS = 8 * 4 * 4  # bytes of f32[8,4]


def test_kernels_by_kind():
    found = {kernel.kind: kernel for kernel in read_kernels(PROGRAM)}
    lookup = ROWS + 8 * 4 + ROWS  # of the table only the rows, the ids, the result
    update = ROWS + 4 + ROWS  # the part is read, the place, and the part is written
    assert found["loop fusion"] == Kernel("loop fusion", 3, 3 * ROWS + lookup + update)
    assert found["reduction"] == Kernel("reduction", 1, 3 * ROWS)
    assert found["product"] == Kernel("product", 1, 2 * (8 * 16 + 16 * 4 + 8 * 4))
    assert found["attention"] == Kernel("attention", 1, 2 * (2 * 8 * 4))
    assert found["collective"] == Kernel("collective", 1, 2 * ROWS)
    assert found["copy"] == Kernel("copy", 1, 2 * ROWS)
    assert found["add"] == Kernel("add", 5, 5 * 12)  # in the loop, once a round
    assert len(found) == 7


FUSIONS = """HloModule jit_step

%rows_of_a_view (table: f32[1000,4], ids: s32[8]) -> f32[8,4] {
  %table = f32[1000,4]{1,0} parameter(0)
  %ids = s32[8]{0} parameter(1)
  %view = f32[10,100,4]{2,1,0} bitcast(%table)
  ROOT %rows = f32[8,4]{1,0} gather(%view, %ids), offset_dims={1}
}

%two_updates (one: f32[100,4], two: f32[100,4], part: f32[8,4], at: s32[]) -> (f32[100,4], f32[50,8]) {
  %one = f32[100,4]{1,0} parameter(0)
  %two = f32[100,4]{1,0} parameter(1)
  %part = f32[8,4]{1,0} parameter(2)
  %at = s32[] parameter(3)
  %first = f32[100,4]{1,0} dynamic-update-slice(%one, %part, %at)
  %second = f32[100,4]{1,0} dynamic-update-slice(%two, %part, %at)
  %flat = f32[50,8]{1,0} bitcast(%second)
  ROOT %both = (f32[100,4]{1,0}, f32[50,8]{1,0}) tuple(%first, %flat)
}

%updated_and_read (whole: f32[100,4], part: f32[8,4], at: s32[]) -> f32[100] {
  %whole = f32[100,4]{1,0} parameter(0)
  %part = f32[8,4]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %update = f32[100,4]{1,0} dynamic-update-slice(%whole, %part, %at)
  ROOT %sums = f32[100]{0} reduce(%update, %at), dimensions={1}
}

ENTRY %main (x: f32[1000,4]) -> f32[100] {
  %big = f32[1000,4]{1,0} parameter(0)
  %which = s32[8]{0} parameter(1)
  %cache = f32[100,4]{1,0} parameter(2)
  %other = f32[100,4]{1,0} parameter(3)
  %place = s32[] parameter(4)
  %taken = f32[8,4]{1,0} fusion(%big, %which), kind=kLoop, calls=%rows_of_a_view
  %written = (f32[100,4]{1,0}, f32[50,8]{1,0}) fusion(%cache, %other, %taken, %place), kind=kCustom, calls=%two_updates
  ROOT %read = f32[100]{0} fusion(%cache, %taken, %place), kind=kInput, calls=%updated_and_read
}
"""  # noqa: E501


def test_parts_are_seen_behind_bitcasts_and_in_tuples():
    found = {kernel.kind: kernel.accessed for kernel in read_kernels(FUSIONS)}
    assert found["loop fusion"] == ROWS + 8 * 4 + ROWS  # the rows, not the table
    assert found["other fusion"] == ROWS + 4 + 2 * ROWS  # of both arrays the update alone
    assert found["reduction"] == 100 * 4 * 4 + ROWS + 4 + 100 * 4  # all of what is updated is read


def test_the_kind_with_most_bytes_comes_first():
    accessed = [kernel.accessed for kernel in read_kernels(PROGRAM)]
    assert accessed == sorted(accessed, reverse=True)


def test_a_loop_of_unknown_length():
    text = PROGRAM.replace("direction=LT", "direction=NE")
    counts = [
        {kernel.kind: kernel.count for kernel in read_kernels(text, unknown_trips=trips)}["add"]
        for trips in (1, 7)
    ]
    assert counts == [1, 7]


def test_a_text_that_is_no_program():
    with pytest.raises(ValueError, match="ENTRY"):
        read_kernels("HloModule nothing\n")
