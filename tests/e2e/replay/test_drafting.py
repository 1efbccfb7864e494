# SPDX-License-Identifier: Apache-2.0
"""Draft tokens in a replay: proposed, scheduled, accepted and rejected by the real scheduler."""

import pytest

from tests.e2e.replay.test_violations import make_job
from vllm_ascend_evaluation.replay.runs.child import run_job
from vllm_ascend_evaluation.replay.sources import WorkloadSource

ANSWERS = WorkloadSource("3:5000:4500:60", concurrency=1)


@pytest.fixture(autouse=True)
def _switches(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_APPLY_DSV4_PATCH", "1")
    monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "0")


@pytest.mark.parametrize("verify", [False, True])
def test_drafts_save_steps_and_cost_no_hits(verify):
    """Without drafts an answer of 60 tokens takes 59 steps behind its prompt."""
    plain, drafting = (
        run_job(make_job(workload=ANSWERS, verify=verify, num_speculative_tokens=drafts))
        for drafts in (0, 2)
    )
    assert drafting.violations == () and drafting.complete and drafting.num_requests == 3
    assert drafting.num_speculative_tokens == 2
    # Some drafts are right, so there are fewer steps; not all, so there are more than a third.
    assert 3 * 59 / 3 < drafting.num_steps < plain.num_steps
    assert drafting.hit_tokens == plain.hit_tokens == 2 * 4096


def test_the_same_drafts_every_time():
    runs = [
        run_job(make_job(workload=ANSWERS, verify=False, num_speculative_tokens=1))
        for _ in range(2)
    ]
    assert runs[0].num_steps == runs[1].num_steps
