"""`base` and `big` as they are trained, compiled for H200 and B200."""

import pytest
from accelerator.combinations import real_size
from accelerator.program_checks import ProgramChecks

pytestmark = pytest.mark.real_size


class TestHopper(ProgramChecks):
    combinations = [one for one in real_size() if one.chip == "h200"]


class TestBlackwell(ProgramChecks):
    combinations = [one for one in real_size() if one.chip == "b200"]
