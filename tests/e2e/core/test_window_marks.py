# SPDX-License-Identifier: Apache-2.0
"""Windows give blocks back however a request was let in: from the boundary that it really hit."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
from vllm.v1.core.sched.scheduler import Scheduler

from tests.e2e.core.configurations import DSV4, SPARSE
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.dry_run.worker import SamplingWorker
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle import IntegrityError, check_integrity

PROMPT_TOKENS = 60_000
CHUNK_TOKENS = 4096


class Bench:
    """A scheduler that lets requests in without memory for all of their prompt."""

    def __init__(self, num_blocks: int) -> None:
        options = SchedulerOptions(num_blocks=num_blocks, max_num_seqs=4)
        self.scheduler: Scheduler = build_scheduler(dsv4_flash_a3(128), options)
        self.scheduler.scheduler_reserve_full_isl = False  # --no-scheduler-reserve-full-isl
        self.scheduler.scheduler_config.long_prefill_token_threshold = CHUNK_TOKENS
        self.worker = SamplingWorker(self.scheduler)
        self.rng = random.Random(0)
        self.peak = 0  # of the request "again"

    def add(self, request_id: str, prompt: list[int]) -> None:
        self.scheduler.add_request(make_request(self.scheduler, request_id, prompt, 1))

    def prompt(self, num_tokens: int) -> list[int]:
        return [self.rng.randrange(1000) for _ in range(num_tokens)]

    def step(self) -> Mapping[str, int]:
        """Return the hits of the requests let in by one step."""
        output = self.scheduler.schedule()
        assert output.num_scheduled_tokens, "nothing can go on"
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        tables = [manager.req_to_blocks.get("again", ()) for manager in managers]
        self.peak = max(self.peak, sum(not block.is_null for table in tables for block in table))
        check_integrity(self.scheduler.kv_cache_manager)
        self.scheduler.update_from_output(output, self.worker.execute(output))
        return {
            request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs
        }

    def run(self) -> dict[str, int]:
        hits: dict[str, int] = {}
        while self.scheduler.has_unfinished_requests():
            hits |= self.step()
        return hits

    def return_after(self, other_tokens: int, num_steps: int) -> int:
        """Let a prompt go on while another takes the memory; return what it hits at last.

        It comes after so many steps of the other one: its hit does not fit, and the other evicts
        it before it fits.
        """
        prompt = self.prompt(PROMPT_TOKENS)
        self.add("first", prompt)
        self.run()
        self.add("other", self.prompt(other_tokens))
        for _ in range(num_steps):
            self.step()
        self.add("again", prompt + self.prompt(CHUNK_TOKENS))
        self.step()
        found = self.scheduler.kv_cache_manager.coordinator.ledger.records["again"].num_hit_tokens
        assert found, "it has found a hit, and no memory to go on behind it"
        hit = self.run()["again"]
        assert hit < found
        return hit


@pytest.mark.skipif(
    running_release().holders_go_first, reason="vLLM caps no chunk of a request that is alone"
)
# Blocks of 128 rows, one prompt of 64,096 tokens in chunks of 4,096, nothing hit.
@pytest.mark.parametrize(
    ("sparse", "num_blocks", "num_steps", "peak"), [("1", 330, 18, 192), ("0", 940, 12, 835)]
)
def test_a_hit_that_found_no_memory_keeps_no_window(
    switch: Callable, sparse: str, num_blocks: int, num_steps: int, peak: int
) -> None:
    switch({DSV4: "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best", SPARSE: sparse})
    bench = Bench(num_blocks)
    assert bench.return_after(100_000, num_steps) == 0
    assert bench.peak == peak


def test_a_window_that_keeps_everything_is_noticed(switch: Callable) -> None:
    switch({DSV4: "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"})
    bench = Bench(2000)
    bench.add("first", bench.prompt(PROMPT_TOKENS))
    bench.step()
    bench.scheduler.kv_cache_manager.coordinator.ledger.records["first"].next_free = 1 << 62
    with pytest.raises(IntegrityError, match=r"first holds .* blocks of group 2, whose window"):
        bench.run()
