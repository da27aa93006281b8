"""Evaluation and decoding of the matrix, compiled for H100."""

import pytest
from accelerator.combinations import Combination, matrix
from accelerator.program_checks import ProgramChecks

pytestmark = pytest.mark.accelerator


class TestInference(ProgramChecks):
    combinations = [one for one in matrix("h100") if one.program != "train"]


def test_a_warning_of_the_partitioner_is_noticed(compiler_for):
    one = Combination("h100", 8, "all", dtype="float32", program="evaluation")
    warnings = compiler_for(one)(one, whole_lookups=True)["warnings"]
    assert warnings and "Involuntary full rematerialization" in warnings[0]
