"""What the matrix has found and is not repaired yet: tests that must fail until it is."""

from __future__ import annotations

from accelerator.combinations import Combination


def _exchanged_twice(one: Combination) -> bool:
    return one.program in ("train", "evaluation") and one.mesh == "all"


def _candidates_gathered(one: Combination) -> bool:
    return one.program == "beam" and one.platform == "gpu" and one.sizes["tensor"] > 1


# Name of the check, whom it concerns, and what is wrong.
KNOWN_DEFECTS = (
    (
        "test_rows_stay_on_their_devices",
        _exchanged_twice,
        "where tensor cuts the table too, lookups are exchanged over fsdp twice, to and fro",
    ),
    (
        "test_rows_stay_on_their_devices",
        _candidates_gathered,
        "where tensor cuts the vocabulary, top_k of a beam search gathers candidates of all rows",
    ),
)


def known_defect(check: str, one: Combination) -> str:
    """Why a check must fail for a combination; empty if it must pass."""
    reasons = [reason for name, applies, reason in KNOWN_DEFECTS if name == check and applies(one)]
    return "; ".join(reasons)
