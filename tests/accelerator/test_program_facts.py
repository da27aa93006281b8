"""What is read from a program's text, on text made up for it."""

from accelerator.program_facts import count_fused, moved_rows, read_products

PROGRAM = """\
HloModule step

%inner (a: bf16[14,8], b: bf16[8,4]) -> f32[14,4] {
  %a = bf16[14,8]{1,0} parameter(0)
  %b = bf16[8,4]{1,0} parameter(1)
  %c = f32[8,4]{1,0} convert(%b)
  %good = f32[14,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}
  ROOT %bad = f32[14,4]{1,0} dot(%a, %c), lhs_contracting_dims={1}, metadata={op_name="loss/dot"}
}

ENTRY %main (p: bf16[14,8]) -> bf16[28,8] {
  %p = bf16[14,8]{1,0} parameter(0)
  %w = f32[14,8]{1,0} convert(%p)
  %gemm = f32[14,14]{1,0} custom-call(%w, %w), custom_call_target="__cublas$gemm"
  %fwd = (bf16[14,8]{1,0}, u8[0]{0}) custom-call(%p), custom_call_target="__cudnn$fmhaSoftmax"
  %bwd = bf16[14,8]{1,0} custom-call(%p), custom_call_target="__cudnn$fmhaSoftmaxBackward"
  %splash_mha_fwd.2 = bf16[14,8]{1,0} custom-call(%p), custom_call_target="tpu_custom_call"
  %splash_mha_dkv.1 = bf16[14,8]{1,0} custom-call(%p), custom_call_target="tpu_custom_call"
  %splash_mha_dq.1 = bf16[14,8]{1,0} custom-call(%p), custom_call_target="tpu_custom_call"
  %sum = f32[14]{0} all-reduce(%w), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %scalars = f32[14]{0} all-reduce(%w), channel_id=7, replica_groups={{0,1,2,3}}, to_apply=%add
  %gradients = f32[17668]{0} all-reduce(%w), channel_id=8, replica_groups={{0,1,2,3}}, to_apply=%add
  %flat = bf16[7168]{0} all-gather(%w), channel_id=9, replica_groups={{0,2},{1,3}}, dimensions={0}
  %ids = s32[28,8]{1,0} all-gather(%p), channel_id=2, replica_groups={{0,1},{2,3}}, dimensions={0}
  %kernel = f32[64,8]{1,0} all-gather(%p), channel_id=3, replica_groups={{0,1},{2,3}}
  %heads = bf16[28,8]{1,0} all-gather(%p), channel_id=4, replica_groups={{0,1},{2,3}}
  %one = bf16[14,8]{1,0} all-gather(%p), channel_id=5, replica_groups={{0},{1},{2},{3}}
  %start = (bf16[14,8], bf16[28,8]) all-gather-start(%p), channel_id=6, replica_groups={{0,2},{1,3}}
  %done = bf16[28,8]{1,0} all-gather-done(%start)
  ROOT %again = bf16[28,8]{1,0} all-gather(%p), channel_id=6, replica_groups={{0,2},{1,3}}
}
"""


def test_products_are_found_inside_fusions_and_in_libraries():
    assert read_products(PROGRAM) == [
        ("bf16[14,8] x bf16[8,4]", "good"),
        ("bf16[14,8] x f32[8,4]", "loss/dot"),
        ("f32[14,8] x f32[14,8]", "gemm"),
    ]


def test_fused_attention_is_counted_on_both_platforms():
    assert count_fused(PROGRAM) == {"forward": 2, "backward": 2}


def test_rows_that_leave_their_devices_are_found_once():
    mesh = {"data": 2, "fsdp": 1, "tensor": 2}
    assert moved_rows(PROGRAM, mesh, 7) == [
        ("all-gather", ["data"], "bf16[7168]"),
        ("all-gather", ["data"], "bf16[28,8]"),
    ]


def test_what_crosses_tensor_alone_may_cross():
    found = moved_rows(PROGRAM, {"data": 2, "fsdp": 2, "tensor": 1}, 7)
    assert [axes for _, axes, _ in found] == [["data"], ["fsdp"], ["data"]]
