# SPDX-License-Identifier: Apache-2.0
"""What ``--slo`` says, and who is served so."""

import math

import pytest

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.slo import Slo


@pytest.mark.parametrize(
    ("text", "ttft_ms", "tpot_ms", "said"),
    [
        ("ttft=5s", 5000.0, math.inf, "TTFT <= 5 s for 99 % of requests"),
        ("tpot=80ms", math.inf, 80.0, "TPOT <= 80 ms for 99 % of requests"),
        ("ttft=1.5s, tpot=0.08s", 1500.0, 80.0, "TTFT <= 1.5 s and TPOT <= 80 ms for 99 % of"),
    ],
)
def test_what_is_promised(text, ttft_ms, tpot_ms, said):
    slo = Slo.of(text, 99.0)
    assert (slo.ttft_ms, slo.tpot_ms) == (ttft_ms, tpot_ms)
    assert str(slo).startswith(said)
    assert slo.is_kept(min(ttft_ms, 1e9), min(tpot_ms, 1e9))
    assert not slo.is_kept(ttft_ms * 1.01, tpot_ms * 1.01) or math.inf in (ttft_ms, tpot_ms)


@pytest.mark.parametrize(
    "text", ["", "soon", "ttft=5", "ttft=0s", "ttft=-1s", "ttft=5s,ttft=6s", "e2e=5s", "ttft=5s,"]
)
def test_anything_else_is_refused_by_one_sentence(text):
    with pytest.raises(BadInputError, match=r"^--slo .*: expected ttft=TIME, tpot=TIME or both"):
        Slo.of(text, 99.0)


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.5, math.nan])
def test_a_share_of_requests_is_a_percentage(percent):
    with pytest.raises(BadInputError, match=r"^--slo-percent .*: expected more than 0 and at most"):
        Slo.of("ttft=5s", percent)
