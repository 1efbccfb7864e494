# SPDX-License-Identifier: Apache-2.0
"""A check becomes a verdict, whatever it raises."""

from __future__ import annotations

import pytest
import torch

from vllm_ascend.npu_check import device_checks
from vllm_ascend.npu_check.outcome import Check, CheckFailedError, Verdict

_NOT_HERE = torch.device("cuda", 99)  # as an NPU whose driver has gone


def test_what_was_measured_is_kept():
    outcome = Check("name", "shows", lambda: {"copies": 2.0}).outcome()
    assert (outcome.verdict, outcome.numbers) == (Verdict.PASSED, {"copies": 2.0})


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (CheckFailedError("round 3: other rows"), "round 3: other rows"),
        (RuntimeError("EZ9999: inner error\nkernel ..."), "RuntimeError: EZ9999: inner error ("),
        (MemoryError(), "MemoryError:  ("),
    ],
)
def test_what_is_raised_is_told_in_a_line(error, detail):
    def run():
        raise error

    outcome = Check("name", "shows", run).outcome()
    assert outcome.verdict is Verdict.FAILED
    assert outcome.detail.startswith(detail) and "\n" not in outcome.detail


def test_a_device_that_breaks_fails_every_check_and_ends_none():
    outcomes = [check.outcome() for check in device_checks.device_checks(_NOT_HERE)]
    assert {outcome.verdict for outcome in outcomes} == {Verdict.FAILED}
    assert all(".py:" in outcome.detail for outcome in outcomes)


def test_an_interrupt_is_not_a_verdict():
    def run():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Check("name", "shows", run).outcome()
