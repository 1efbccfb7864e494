# SPDX-License-Identifier: Apache-2.0
"""Where memory goes: what each block of the pool is for, and which hits were lost to what."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, get_group_id
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from vllm_ascend.core.policy.ranks import SPARE_SPACING, Rank
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend_evaluation.replay.memory_use import MemoryUse

_EVERY_STEPS = 8
"""A look at the pool takes milliseconds."""


class MemoryWatch:
    """Looks at a scheduler's pool in every eighth step, and at each request that starts."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._manager = scheduler, scheduler.kv_cache_manager
        self._pool, coordinator = self._manager.block_pool, self._manager.coordinator
        self._ranked = coordinator if isinstance(coordinator, RankedCaching) else None
        self._num_blocks: Counter[str] = Counter()
        self._num_steps = self._num_looks = 0
        self._added: dict[str, int] = {}  # request -> steps before it came
        self._num_waited = self._no_tail_tokens = self._no_rows_tokens = 0
        self._seen: set[BlockHash] = set()

    def added(self, name: str) -> None:
        """A request has come."""
        self._added[name] = self._num_steps

    def step(self, output: SchedulerOutput) -> None:
        """A step has been scheduled."""
        for started in output.scheduled_new_reqs:
            self._num_waited += self._added.pop(started.req_id) < self._num_steps
            self._note_lost(started.req_id, started.num_computed_tokens)
        for started in output.scheduled_new_reqs:
            self._seen.update(self._scheduler.requests[started.req_id].block_hashes)
        if self._num_steps % _EVERY_STEPS == 0:
            self._num_blocks.update(map(self._purpose, self._pool.blocks[1:]))  # 0: the null block
            self._num_looks += 1
        self._num_steps += 1

    def _note_lost(self, name: str, hit_tokens: int) -> None:
        """Note how much more a request would have hit of prompts that have started before."""
        request, hash_tokens = self._scheduler.requests[name], self._pool.hash_block_size
        # -1: the last prompt token is computed for its logits.
        hashes = request.block_hashes[: (request.num_prompt_tokens - 1) // hash_tokens]
        computed = hash_tokens * bisect_left(hashes, True, key=lambda h: h not in self._seen)
        computed = max(computed, hit_tokens)  # it may have hit an answer
        record = None if self._ranked is None else self._ranked.ledger.records.get(name)
        matched = 0 if record is None else record.num_matched_tokens
        with_rows = min(max(matched, hit_tokens), computed)
        self._no_tail_tokens += with_rows - hit_tokens
        self._no_rows_tokens += computed - with_rows

    def _purpose(self, block: KVCacheBlock) -> str:
        """Return the attribute of :class:`MemoryUse` that counts a block."""
        if block.ref_cnt:
            return "live"
        if block.block_hash is None:
            granules = None if self._ranked is None else self._ranked.block_pool.granules
            return "fragments" if granules is not None and block in granules else "empty"
        if self._ranked is None:
            return "rows"
        pool, groups = self._ranked.block_pool, self._ranked.groups.all
        rank, is_rows = pool.rank(block), groups[get_group_id(block.block_hash)].is_downward_closed
        if rank is Rank.MARGINAL:
            # Hits use no marginal tail without keeping it: another one has this tail's place.
            return "superseded" if pool.was_used(block) and not is_rows else "marginal"
        if rank in SPARE_SPACING:
            return "spares"
        return "rows" if is_rows else "kept_tails"

    def use(self) -> MemoryUse:
        """Return what was seen."""
        counts: dict[str, Any] = {
            name: count / self._num_looks for name, count in self._num_blocks.items()
        }
        counts["no_tail_tokens"] = None if self._ranked is None else self._no_tail_tokens
        counts |= {"num_waited": self._num_waited, "no_rows_tokens": self._no_rows_tokens}
        return MemoryUse(**counts)
