"""The matrix, compiled for TPU v5e."""

import pytest
from accelerator.combinations import REMAT_CASES, Combination, matrix
from accelerator.program_checks import ProgramChecks, RematChecks

pytestmark = pytest.mark.accelerator


class TestPrograms(ProgramChecks):
    combinations = matrix("v5e")


class TestRemat(RematChecks):
    combinations = REMAT_CASES["v5e"]


def test_a_warning_of_the_partitioner_is_noticed(compiler_for):
    one = Combination("v5e", 8, "all", program="evaluation")
    warnings = compiler_for(one)(one, whole_lookups=True)["warnings"]
    assert warnings and "Involuntary full rematerialization" in warnings[0]
