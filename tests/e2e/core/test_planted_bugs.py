# SPDX-License-Identifier: Apache-2.0
"""A proof that cannot fail proves nothing: bugs planted one at a time, every one caught.

These lend wrong rows; the oracle catches them under random traffic. For bugs that keep too little
see test_planted_retention_bugs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import BlockHashListWithBlockSize
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.workload import Workload
from tests.release_marks import is_native
from vllm_ascend.core import kv_cache_coordinator, ranked_caching
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator, RankedCoordinator
from vllm_ascend.core.layout.specs import is_downward_closed, tokens_per_block
from vllm_ascend.core.lookup.prefix_lookup import PrefixLookup
from vllm_ascend.core.plan.cache_plan import CachePlan, plan_cache
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.releases import running_release
from vllm_ascend.row_layout.compress_manager import CompressAttentionManager
from vllm_ascend_evaluation.oracle import ContentViolation, IntegrityError
from vllm_ascend_evaluation.oracle import worker as oracle_worker
from vllm_ascend_evaluation.oracle.groups import Drafts

Plant = Callable[[pytest.MonkeyPatch], None]

_MANAGER = "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager"
_HUNT_STEPS = 3000
_SEEDS = range(3)


def no_op(*args, **kwargs) -> None:
    """Forget to do it."""


# Bugs in what is lent.


def hash_rows_instead_of_tokens(patch: pytest.MonkeyPatch) -> None:
    """Name compressed blocks after the first `rows` tokens instead of `rows * ratio`."""

    def cache_blocks(self, request, num_tokens, retention_interval=None, alignment_tokens=None):
        cached = self.num_cached_block.get(request.request_id, 0)
        full = num_tokens // self.compress_ratio // self.block_size
        if cached < full:
            self.block_pool.cache_full_blocks(
                request,
                self.req_to_blocks[request.request_id],
                cached,
                full,
                self.block_size,
                self.kv_cache_group_id,
            )
            self.num_cached_block[request.request_id] = full

    patch.setattr(CompressAttentionManager, "cache_blocks", cache_blocks)


def lend_blocks_behind_the_hit(patch: pytest.MonkeyPatch) -> None:
    """Hand out full groups' matching blocks although the hit is shorter."""
    original = AscendHybridKVCacheCoordinator.find_longest_cache_hit

    def find_longest_cache_hit(self, block_hashes, max_cache_hit_length):
        blocks, hit, *rest = original(self, block_hashes, max_cache_hit_length)
        for group_id, manager in enumerate(self.single_type_managers):
            spec = manager.kv_cache_spec
            if not hit or not is_downward_closed(spec):
                continue
            tokens = tokens_per_block(spec)
            hashes = BlockHashListWithBlockSize(block_hashes, self.hash_block_size, tokens)
            found = self.block_pool.get_cached_block
            ordinal = len(blocks[group_id])
            while (ordinal + 1) * tokens <= max_cache_hit_length and (
                block := found(hashes[ordinal], [group_id])
            ):
                blocks[group_id].append(block[0])
                ordinal += 1
        return blocks, hit, *rest

    patch.setattr(AscendHybridKVCacheCoordinator, "find_longest_cache_hit", find_longest_cache_hit)


def look_up_tails_one_block_short(patch: pytest.MonkeyPatch) -> None:
    """Resume although the first block of the window is missing."""
    original = PrefixLookup.tail

    def tail(self, group, boundary):
        shorter = max((group.tail_length or 0) - 1, 0)
        return original(self, replace(group, tail_length=shorter), boundary)

    patch.setattr(PrefixLookup, "tail", tail)


def end_hits_inside_compressed_blocks(patch: pytest.MonkeyPatch) -> None:
    """Align hits to half of what the coarsest block covers, without copying it."""

    def plan_with_half_the_alignment(*args, **kwargs) -> CachePlan:
        plan = plan_cache(*args, **kwargs)
        return replace(plan, alignment=plan.alignment // 2)

    patch.setattr(kv_cache_coordinator, "plan_cache", plan_with_half_the_alignment)


def forget_the_eagle_drop(patch: pytest.MonkeyPatch) -> None:
    """Treat groups with draft layers like all others."""
    patch.setattr(kv_cache_coordinator, "find_draft_groups", lambda *args, **kwargs: set())


def ignore_successors(patch: pytest.MonkeyPatch) -> None:
    """Take any copy of a block, whatever token followed it."""

    def pick(self, copies, block_hashes, end_tokens):
        return copies[0] if copies else None

    patch.setattr(SuccessorHashes, "pick", pick)


def lend_states_of_this_step(patch: pytest.MonkeyPatch) -> None:
    """Rest a hit on compressor state that the same step has yet to write."""
    original = RankedCoordinator.cache_blocks

    def cache_blocks(self, request, num_computed_tokens) -> None:
        original(self, request, num_computed_tokens)
        if record := self.ledger.records.get(request.request_id):
            self._settle(record)

    patch.setattr(RankedCoordinator, "cache_blocks", cache_blocks)


def free_windows_too_early(patch: pytest.MonkeyPatch) -> None:
    """Count a block too many as left behind."""
    original = SlidingWindowManager.get_num_skipped_tokens

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return original(self, num_computed_tokens) + self.block_size

    patch.setattr(SlidingWindowManager, "get_num_skipped_tokens", get_num_skipped_tokens)


def free_the_window_that_an_open_one_overlaps(patch: pytest.MonkeyPatch) -> None:
    """Of an overlapping compressor's state hold the open window alone."""
    original = ranked_caching.leave_behind

    def leave_behind(group, *args):
        if group.is_read_first:
            group = replace(group, held=replace(group.held, behind=0))
        return original(group, *args)

    patch.setattr(ranked_caching, "leave_behind", leave_behind)


def trust_drafts_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Free windows as if drafts that are still being verified were accepted."""
    vllms = HybridKVCacheCoordinator.remove_skipped_blocks
    for coordinator in (AscendHybridKVCacheCoordinator, RankedCoordinator):
        patch.setattr(coordinator, "remove_skipped_blocks", vllms)


# Bugs in the pool and the keys.


def forget_to_reference_hits(patch: pytest.MonkeyPatch) -> None:
    """Leave hit blocks in the free queue."""
    patch.setattr(BlockPool, "touch", no_op)


def reference_without_leaving_the_queue(patch: pytest.MonkeyPatch) -> None:
    """Count the reference, but let the block be allocated again."""

    def touch(self, blocks) -> None:
        for block in blocks:
            block.ref_cnt += 1

    patch.setattr(BlockPool, "touch", touch)


def free_twice(patch: pytest.MonkeyPatch) -> None:
    """Drop one reference too many when a block is freed."""
    original = BlockPool.free_blocks

    def free_blocks(self, ordered_blocks: Iterable, *args, **kwargs) -> None:
        blocks = list(ordered_blocks)
        original(self, blocks, *args, **kwargs)
        original(self, [b for b in blocks if b.ref_cnt > 0][:1], *args, **kwargs)

    patch.setattr(BlockPool, "free_blocks", free_blocks)


def leak_blocks(patch: pytest.MonkeyPatch) -> None:
    """Forget the last block whenever several are freed."""
    original = AscendBlockPool.free_blocks

    def free_blocks(self, ordered_blocks: Iterable, *args, **kwargs) -> None:
        blocks = list(ordered_blocks)
        original(self, blocks[: max(1, len(blocks) - 1)], *args, **kwargs)

    patch.setattr(AscendBlockPool, "free_blocks", free_blocks)


def hash_without_the_parent(patch: pytest.MonkeyPatch) -> None:
    """Name a block after its own tokens only."""
    original = kv_cache_utils.hash_block_tokens

    def hash_block_tokens(function, parent, *args):
        return original(function, None, *args)

    patch.setattr(kv_cache_utils, "hash_block_tokens", hash_block_tokens)


def hash_without_extra_keys(patch: pytest.MonkeyPatch) -> None:
    """Share blocks between salts and adapters."""
    patch.setattr(kv_cache_utils, "generate_block_hash_extra_keys", lambda *args: (None, 0))


def keep_keys_of_evicted_blocks(patch: pytest.MonkeyPatch) -> None:
    """Reuse a block's memory but leave its key in the index."""
    patch.setattr(BlockPool, "_maybe_evict_cached_block", lambda self, block: block.reset_hash())


def keep_keys_over_a_reset(patch: pytest.MonkeyPatch) -> None:
    """Say that the cache was reset, and do nothing."""
    patch.setattr(BlockPool, "reset_prefix_cache", lambda self: True)


def draft_with_rows_of_the_next_token(patch: pytest.MonkeyPatch) -> None:
    """Let DSpark's rows depend on the token behind them, as MTP's do, and drop no granule."""
    patch.setattr(oracle_worker, "_drafts_of", lambda scheduler: Drafts.NEXT_TOKEN)


@dataclass(frozen=True)
class Bug:
    """A planted bug and a configuration in which it does harm."""

    plant: Plant
    cell: str
    errors: tuple[type[Exception], ...] = (ContentViolation,)

    def __str__(self) -> str:
        return f"{self.plant.__name__}-{self.cell}"


ANY = (ContentViolation, IntegrityError)
# Of layouts whose blocks count rows, of our coordinator with nothing set, and of windows that are
# freed before their steps are settled: where vLLM does these itself, there is nothing to break.
OLDER_BUGS = (
    Bug(hash_rows_instead_of_tokens, "dsv4-rows-plain-retention-unset"),
    Bug(end_hits_inside_compressed_blocks, "dsv4-rows-plain-retention-unset"),
    Bug(forget_the_eagle_drop, "dsv4-rows-mtp1-best"),
    Bug(trust_drafts_in_flight, "gemma-async-mtp-retention-0"),
    Bug(trust_drafts_in_flight, "dsv4-rows-async-mtp-retention-unset"),
)
# DSpark reads the target's window, and loses nothing of a hit for it.
DSPARK_BUGS = (
    Bug(look_up_tails_one_block_short, "dsv4-rows-dspark3-retention-0", (AssertionError,)),
    Bug(draft_with_rows_of_the_next_token, "dsv4-rows-dspark3-retention-0"),
    Bug(draft_with_rows_of_the_next_token, "dsv4-rows-dspark1-best"),
    Bug(free_windows_too_early, "dsv4-rows-dspark3-best"),
)
LENDING_BUGS = (
    *(DSPARK_BUGS if running_release().has_dspark else ()),
    Bug(free_the_window_that_an_open_one_overlaps, "dsv4-rows-plain-best"),
    Bug(free_the_window_that_an_open_one_overlaps, "dsv4-rows-async-mtp-best"),
    *(OLDER_BUGS if running_release().counts_rows else ()),
    Bug(lend_blocks_behind_the_hit, "dsv4-rows-plain-retention-0", ANY),
    Bug(lend_blocks_behind_the_hit, "gemma-plain-retention-0", ANY),
    Bug(look_up_tails_one_block_short, "dsv4-rows-plain-retention-0", (AssertionError,)),
    Bug(look_up_tails_one_block_short, "gemma-plain-retention-N", (AssertionError,)),
    Bug(forget_the_eagle_drop, "gemma-mtp1-retention-0"),
    Bug(ignore_successors, "dsv4-rows-mtp1-retention-0"),
    # Where vLLM masks blocks itself, as good as nothing is hit there with nothing set.
    *(
        Bug(bug, "dsv4-rows-mtp1-retention-unset")
        for bug in (forget_the_eagle_drop, ignore_successors)
        if not is_native(f"{_MANAGER}.cache_blocks")
    ),
    Bug(lend_states_of_this_step, "dsv4-rows-plain-retention-0"),
    Bug(free_windows_too_early, "gemma-plain-retention-unset"),
    Bug(free_windows_too_early, "dsv4-rows-plain-retention-0"),
    Bug(forget_to_reference_hits, "gemma-plain-retention-unset", ANY),
    Bug(forget_to_reference_hits, "dsv4-rows-plain-retention-0", ANY),
    Bug(reference_without_leaving_the_queue, "gemma-plain-retention-unset", ANY),
    Bug(free_twice, "full-plain-retention-unset", ANY),
    Bug(leak_blocks, "gemma-plain-retention-0", ANY),
    Bug(hash_without_the_parent, "full-plain-retention-unset"),
    Bug(hash_without_the_parent, "dsv4-rows-plain-retention-0"),
    Bug(hash_without_extra_keys, "gemma-plain-retention-unset"),
    Bug(keep_keys_of_evicted_blocks, "full-plain-retention-unset", ANY),
    Bug(keep_keys_over_a_reset, "gemma-plain-retention-0", ANY),
)


@pytest.mark.parametrize("bug", LENDING_BUGS, ids=str)
def test_the_oracle_catches(
    bug: Bug, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a few thousand steps of the traffic that the bug-free code passes."""
    cell = next(c for c in grid() if str(c) == bug.cell)
    bug.plant(monkeypatch)
    with pytest.raises(bug.errors):
        hunt(cell, make_engine)


def hunt(cell: Configuration, make_engine: MakeEngine) -> None:
    """The usual traffic, with every invariant checked after every step."""
    for seed in _SEEDS:
        engine = make_engine(
            lambda: cell.layout,
            lambda seed=seed: cell.options(2.4 - 0.6 * seed),
            cell.oracle(seed),
            cell.environment,
        )
        workload = Workload(engine, cell.traffic, seed)
        workload.run(_HUNT_STEPS // len(_SEEDS), check_every=1)
