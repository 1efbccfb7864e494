# SPDX-License-Identifier: Apache-2.0
"""By priority, a request can be preempted in the very step that it was just scheduled in.

What it entered then is never computed. A request that goes on where it stopped must not find it.
"""

from itertools import product

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.conftest import MakeEngine
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend_evaluation.oracle import ContentViolation, OracleOptions

RETENTION = {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "16"}
# Tokens of the important request's prompt, and blocks in the pool: about enough for one of them.
CASES = list(product(range(5, 22), range(29, 34)))


def run_and_follow(make_engine: MakeEngine, prompt_tokens: int, num_blocks: int) -> bool:
    """Let a request be preempted by a more important one, and follow it; return whether it was."""
    engine = make_engine(
        lambda: layouts.gemma_like(4, 5),
        SchedulerOptions(
            num_blocks=num_blocks,
            max_num_seqs=2,
            max_num_batched_tokens=32,
            max_model_len=90,
            policy="priority",
        ),
        OracleOptions(seed=1),
        RETENTION,
    )
    humble = engine.add("humble", [1] * 5, 30, priority=5)
    engine.step()
    engine.add("important", [2] * prompt_tokens, 30, priority=0)
    # Pools as small as these may fit nobody who waits; start-up would have refused them.
    while engine.idle_turns < 5 and engine.step():
        if humble.num_preemptions and "follower" not in engine.requests:
            so_far = [1] * 5 + engine.outputs["humble"]
            engine.add("follower", [*so_far, *[3] * 9], 2, priority=1)
    engine.abort(engine.alive)
    engine.drain()
    return "follower" in engine.requests


def test_what_was_never_computed_is_never_hit(make_engine: MakeEngine) -> None:
    followers = sum(run_and_follow(make_engine, *case) for case in CASES)
    assert followers > 20, "too few were preempted to prove anything"


def test_without_taking_it_back_it_would_be(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RankedCaching, "withdraw_unwritten", lambda self, request_id: None)
    with pytest.raises(ContentViolation, match="nobody has written"):
        for case in CASES:
            run_and_follow(make_engine, *case)
