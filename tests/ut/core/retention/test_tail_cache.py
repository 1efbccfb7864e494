# SPDX-License-Identifier: Apache-2.0
"""What a request remembers of the tails that it leaves in the cache."""

import itertools

from tests.e2e.core import layouts
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.replay.scheduler import SchedulerOptions, build_scheduler, make_request


def test_a_prompt_of_a_million_tokens_remembers_a_hundred_tails(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_DSV4_PARTIAL_HITS", "1")
    options = SchedulerOptions(
        num_blocks=40_000, max_num_batched_tokens=65_536, max_model_len=1_048_577
    )
    scheduler = build_scheduler(layouts.gemma_like(128, 128), options)
    coordinator = scheduler.kv_cache_manager.coordinator
    assert isinstance(coordinator, AscendHybridKVCacheCoordinator)
    assert coordinator.lcm_block_size == 128
    request = make_request(scheduler, "long", [7] * 1_048_576, 1)
    scheduler.add_request(request)
    most = 0
    while request.num_computed_tokens < 1_048_576:
        scheduler.schedule()
        most = max(most, len(coordinator.caching.records["long"].kept))
    assert sum(coordinator.stats.kept) >= 8_192, "every boundary is kept"
    assert most <= 128
    boundaries = [tail.boundary for tail in coordinator.caching.records["long"].kept]
    assert boundaries[-2:] == [1_048_448, 1_048_576], "the replay boundary is always among them"
    gaps = [end - start for start, end in itertools.pairwise([0, *boundaries[:-2]])]
    assert set(gaps) == {16_384}, "they are spread over the prompt"
