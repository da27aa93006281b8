"""The train steps of the matrix, compiled for H100."""

import pytest
from accelerator.combinations import REMAT_CASES, matrix
from accelerator.program_checks import ProgramChecks, RematChecks

pytestmark = pytest.mark.accelerator


class TestTrainSteps(ProgramChecks):
    combinations = [one for one in matrix("h100") if one.program == "train"]


class TestRemat(RematChecks):
    combinations = REMAT_CASES["h100"]
