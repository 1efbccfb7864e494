# SPDX-License-Identifier: Apache-2.0
"""The layout with rings in a replay: hits at granules, every row checked."""

from __future__ import annotations

import pytest

from tests.e2e.replay.test_violations import make_job
from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.runs.child import run_job

RINGS = {"layout": "dsv4-flash-a3-rings", "block_size": 128}


@pytest.fixture(autouse=True)
def _profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")


@pytest.mark.parametrize("num_speculative_tokens", [0, 1])
def test_hits_are_those_of_the_layout_with_state_in_the_pool(num_speculative_tokens: int) -> None:
    drafts = {"num_speculative_tokens": num_speculative_tokens}
    rings = run_job(make_job(**RINGS, **drafts))
    pool = run_job(make_job(block_size=128, **drafts))
    assert rings.violations == () == pool.violations
    assert rings.complete and rings.hit_tokens == pool.hit_tokens > 0


def test_nothing_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE")
    with pytest.raises(BadInputError, match="dsv4-flash-a3-rings: compressor state in rings"):
        run_job(make_job(**RINGS))
