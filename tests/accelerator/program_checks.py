"""What every program of the matrix must be like."""

EXCHANGES = {"train": 4, "evaluation": 2}  # of looked up rows: two tables, and their gradients


def fused_in(one) -> bool:
    """Whether fused attention can do a combination: what `ops/attention_choice.py` should choose.

    Searches attend with a mask of bool, and cuDNN knows neither float32 nor the segments of packed
    rows; splash knows both.
    """
    if one.program not in ("train", "evaluation"):
        return False
    return one.platform == "tpu" or (one.dtype == "bfloat16" and one.batching == "buckets")


class ProgramChecks:
    """To be derived from, with the `combinations` to check."""

    combinations = ()

    def test_it_compiles(self, combination, compile_for):
        assert compile_for(combination)["argument_bytes"] > 0

    def test_attention_is_fused_where_it_can_be(self, combination, compile_for):
        facts = compile_for(combination)
        calls = facts["attentions"] if fused_in(combination) else 0
        forward = calls * (2 if combination.remat != "off" else 1)  # computed again
        backward = calls if combination.program == "train" else 0
        assert facts["fused"] == {"forward": forward, "backward": backward}

    def test_a_device_holds_its_part_of_the_state(self, combination, compile_for):
        facts, sizes = compile_for(combination), combination.sizes
        part = facts["whole_bytes"] / (sizes["fsdp"] * sizes["tensor"])
        assert part <= facts["held_bytes"] <= 1.03 * part  # vectors are not cut by tensor
        if combination.platform == "gpu":  # a TPU fills narrow arrays up to whole tiles
            assert part <= facts["argument_bytes"] <= 1.03 * part + 16

    def test_products_take_the_dtype_of_the_computation(self, combination, compile_for):
        facts = compile_for(combination)
        assert facts["products"] > 0
        if combination.dtype == "bfloat16":  # logits and loss are float32 sums of such products
            assert facts["wide_products"] == []
        elif combination.platform == "gpu":  # a TPU rounds the operands of float32 products
            assert len(facts["wide_products"]) == facts["products"]

    def test_rows_stay_on_their_devices(self, combination, compile_for):
        moved = compile_for(combination)["moved_rows"]
        exchange = [one for one in moved if one[:2] == ["all-to-all", ["fsdp"]]]
        assert [one for one in moved if one not in exchange] == []
        limit = EXCHANGES.get(combination.program, 2) if combination.sizes["fsdp"] > 1 else 0
        assert len(exchange) <= limit

    def test_the_partitioner_does_not_warn(self, combination, compile_for):
        assert compile_for(combination)["warnings"] == []


class RematChecks:
    """To be derived from, with the `combinations` whose activations are to be computed again."""

    combinations = ()

    def test_remat_lowers_temporaries(self, combination, compile_for):
        from accelerator.combinations import remat_family

        family = remat_family(combination)
        off, projections, nothing = (compile_for(one)["temporary_bytes"] for one in family)
        assert nothing < projections < 0.85 * off
