"""What a program runs, and how often: loops, branches and calls, in a text to count by hand."""

import collections

import pytest

from jaxformer.planning.collectives import Collective, read_collectives
from jaxformer.planning.hlo_text import called, open_loops, read_computations, tally, trip_count
from jaxformer.planning.kernels import Kernel, read_kernels

PROGRAM = """\
HloModule jit_search

%sends (x: f32[100]) -> f32[100] {
  %x = f32[100]{0} parameter(0)
  ROOT %sum = f32[100]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%add
}

%copies (x: f32[100]) -> f32[100] {
  %x = f32[100]{0} parameter(0)
  %once = f32[100]{0} copy(%x)
  ROOT %twice = f32[100]{0} copy(%once)
}

%idles (x: f32[100]) -> f32[100] {
  ROOT %x = f32[100]{0} parameter(0)
}

%body (s: (s32[], f32[100], pred[8])) -> (s32[], f32[100], pred[8]) {
  %s = (s32[], f32[100], pred[8]) parameter(0)
  %index = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%index, %one)
  %x = f32[100]{0} get-tuple-element(%s), index=1
  %chosen = f32[100]{0} conditional(%next, %x, %x, %x), branch_computations={%idles, %sends, %copies}
  %done = pred[8]{0} get-tuple-element(%s), index=2
  ROOT %following = (s32[], f32[100], pred[8]) tuple(%next, %chosen, %done)
}

%unfinished (s: (s32[], f32[100], pred[8])) -> pred[] {
  %s = (s32[], f32[100], pred[8]) parameter(0)
  %index = s32[] get-tuple-element(%s), index=0
  %limit = s32[] constant(50)
  %below = pred[] compare(%index, %limit), direction=LT
  %done = pred[8]{0} get-tuple-element(%s), index=2
  %all = pred[] reduce(%done, %limit), dimensions={0}, to_apply=%and
  ROOT %go = pred[] and(%below, %all)
}

%counted (s: (s32[], f32[100], pred[8])) -> pred[] {
  %s = (s32[], f32[100], pred[8]) parameter(0)
  %index = s32[] get-tuple-element(%s), index=0
  %limit = s32[] constant(7)
  ROOT %below = pred[] compare(%index, %limit), direction=LT
}

%inside (s: (s32[], f32[100], pred[8])) -> (s32[], f32[100], pred[8]) {
  %s = (s32[], f32[100], pred[8]) parameter(0)
  ROOT %search = (s32[], f32[100], pred[8]) while(%s), condition=%unfinished, body=%body
}

ENTRY %main (s: (s32[], f32[100], pred[8])) -> (s32[], f32[100], pred[8]) {
  %s = (s32[], f32[100], pred[8]) parameter(0)
  %layers = (s32[], f32[100], pred[8]) while(%s), condition=%counted, body=%body
  ROOT %result = (s32[], f32[100], pred[8]) call(%layers), to_apply=%inside
}
"""  # noqa: E501
COMPUTATIONS, ENTRY = read_computations(PROGRAM)


def counts(kernels):
    return {kernel.kind: kernel.count for kernel in kernels}


def test_a_loop_whose_condition_looks_at_more_than_a_counter_has_no_known_length():
    layers = next(line for line in COMPUTATIONS["main"] if line.opcode == "while")
    (search,) = open_loops(COMPUTATIONS, ENTRY)
    assert trip_count(layers.rest, COMPUTATIONS) == 7
    assert trip_count(search.rest, COMPUTATIONS) is None
    assert (called(search, "body"), called(search, "condition")) == ("body", "unfinished")
    assert called(search, "calls") == ""


def test_a_condition_runs_where_the_length_is_not_known():
    found = counts(read_kernels(PROGRAM, unknown_trips=20))
    assert found == {"copy": 2 * 27, "add": 27, "compare": 20, "reduce": 20, "and": 20}


def test_a_loop_can_be_read_by_itself():
    found = counts(read_kernels(PROGRAM, starts=["body", "unfinished"]))
    assert found == {"copy": 2, "add": 1, "compare": 1, "reduce": 1, "and": 1}
    assert read_collectives(PROGRAM, 2, starts=["body"]) == [
        Collective("all-reduce", (0, 1), 400, 1)
    ]


def test_of_branches_the_dearest_counts_by_what_is_asked_for():
    """One branch sends, another touches more memory; neither is the first."""
    assert read_collectives(PROGRAM, 2) == [Collective("all-reduce", (0, 1), 400, 8)]
    assert Kernel("copy", 2, 1600) in read_kernels(PROGRAM, starts=["body"])
    assert "collective" not in counts(read_kernels(PROGRAM))


@pytest.mark.parametrize(("trips", "visits"), [(1, 8), (3, 10)])
def test_what_is_tallied_is_the_readers_own(trips, visits):
    def own(name):
        return collections.Counter({name: 1})

    total = tally(COMPUTATIONS, [ENTRY], own, len, unknown_trips=trips)
    assert total == {
        "main": 1, "inside": 1, "body": visits, "unfinished": trips, "idles": visits,
    }  # fmt: skip
