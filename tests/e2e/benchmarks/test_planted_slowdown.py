# SPDX-License-Identifier: Apache-2.0
"""The check of ratios finds what is slow, with everything real.

That it passes when nothing is slow is shown by ``make speed-check``, behind every run of the suite.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.children import ChildError
from benchmarks.microscope.cases import Case
from benchmarks.microscope.check import check_here
from benchmarks.microscope.limits import LIMITS, REPEATS
from benchmarks.microscope.sides import SIDES

LOOK_UP = Case("look_up_full", 8192)
LIMIT = next(limit for limit in LIMITS if (limit.case, limit.side) == (LOOK_UP, "unset"))


def planted(module: str) -> dict:
    side = SIDES["unset"]
    return {**SIDES, "unset": replace(side, installs=(*side.installs, module))}


def test_a_look_up_that_hashes_each_token_is_above_its_limit() -> None:
    (verdict,) = check_here([LIMIT], planted("tests.e2e.benchmarks.slow_look_up"))
    assert not verdict.is_kept
    assert len(verdict.ratios) == REPEATS
    # Far above, so that this test does not hang on how busy the machine is.
    assert min(verdict.ratios) > 2 * LIMIT.at_most, verdict.ratios


def test_a_side_that_cannot_be_measured_is_an_error_with_its_reason() -> None:
    with pytest.raises(ChildError, match="No module named 'nothing'"):
        check_here([LIMIT], planted("nothing"))
