# SPDX-License-Identifier: Apache-2.0
"""Invariants of the real block pool, its free queue, its index and the block tables.

Every check walks the whole pool: for tests and replays, not for serving.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import get_group_id

from vllm_ascend_evaluation.oracle.errors import IntegrityError

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock


def check_integrity(
    kv_cache_manager: KVCacheManager,
    freed_later: Iterable[KVCacheBlock] = (),
    given_up: Iterable[int] = (),
) -> None:
    """Check that pool, free queue, indexes and block tables agree. Changes nothing.

    Args:
        freed_later: Blocks of no request any more that wait to be freed.
        given_up: Ids of blocks whose requests start over as soon as their loads have ended: until
            then several may hold one without a name, for none of them writes it.

    Raises:
        IntegrityError: naming the block and what is wrong with it.
    """
    pool = kv_cache_manager.block_pool
    free = _check_free_queue(pool)
    sources = {block.block_id for block in _copy_sources(kv_cache_manager)} | set(given_up)
    references = _count_references(kv_cache_manager)
    references.update(block.block_id for block in freed_later if not block.is_null)
    _check_reference_counts(pool, free, references, sources)
    _check_index(pool)
    _check_duplicates(pool)
    _check_granules(pool)
    _check_tables(kv_cache_manager)
    _check_windows(kv_cache_manager)


def check_drained(kv_cache_manager: KVCacheManager) -> None:
    """Check that nothing is left once all requests have ended and the cache was reset.

    Raises:
        IntegrityError: a block is not free, the index is not empty, or a manager still
            remembers a request.
    """
    check_integrity(kv_cache_manager)
    pool = kv_cache_manager.block_pool
    num_free = pool.get_num_free_blocks()
    # -1: the null block is never free.
    if num_free != pool.num_gpu_blocks - 1:
        raise IntegrityError(f"{num_free} of {pool.num_gpu_blocks - 1} blocks are free at the end")
    if len(pool.cached_block_hash_to_block):
        raise IntegrityError(f"{len(pool.cached_block_hash_to_block)} keys are left after a reset")
    for block in pool.blocks:
        if block.block_hash is not None:
            raise IntegrityError(f"block {block.block_id} has a key after a reset")
    for manager in kv_cache_manager.coordinator.single_type_managers:
        leftover = {*manager.req_to_blocks, *manager.num_cached_block}
        if leftover:
            raise IntegrityError(
                f"group {manager.kv_cache_group_id} remembers {sorted(leftover)} after the end"
            )
    for part, remembered in _remembered_requests(kv_cache_manager.coordinator).items():
        if remembered:
            raise IntegrityError(f"{part} remembers {sorted(remembered)} after the end")
    granules = getattr(pool, "granules", ())
    if len(granules):
        raise IntegrityError(f"{len(granules)} blocks have granules after a reset")


def _check_free_queue(pool: BlockPool) -> set[int]:
    """Walk the queue, tier by tier; return the ids of the free blocks."""
    queue = pool.free_block_queue
    tiers = getattr(queue, "tiers", (queue,))
    forward = [block_id for tier in tiers for block_id in _walk(tier, pool.num_gpu_blocks)]
    if len(forward) != queue.num_free_blocks:
        raise IntegrityError(f"free queue: {len(forward)} linked, {queue.num_free_blocks} counted")
    free = set(forward)
    if len(free) != len(forward):
        raise IntegrityError("free queue: a block is in it twice")
    if pool.null_block.block_id in free:
        raise IntegrityError("free queue: the null block is in it")
    for block_id in forward:
        if pool.blocks[block_id].is_null:
            raise IntegrityError(f"free queue: block {block_id} is marked null")
    if len(tiers) > 1:
        _check_tiers(pool, tiers)
    return free


def _walk(queue: FreeKVCacheBlockQueue, num_blocks: int) -> list[int]:
    """Return the ids in a linked queue; its links must agree in both directions.

    The nodes at its ends are no blocks.
    """
    forward: list[int] = []
    block = queue.fake_free_list_head
    while (following := block.next_free_block) is not None:
        if following.prev_free_block is not block:
            raise IntegrityError(f"free queue: block {following.block_id} has a wrong back link")
        block = following
        if block is not queue.fake_free_list_tail:
            forward.append(block.block_id)
        if len(forward) > num_blocks:
            raise IntegrityError("free queue: the links run in a circle")
    if block is not queue.fake_free_list_tail:
        raise IntegrityError(f"free queue: it ends at block {block.block_id}, not at its tail")
    if len(forward) != queue.num_free_blocks:
        raise IntegrityError(f"free queue: {len(forward)} linked, {queue.num_free_blocks} counted")
    return forward


def _remembered_requests(coordinator: Any) -> dict[str, Collection[str]]:
    """Return the parts that remember requests, and which; vLLM's coordinators have none."""
    if not hasattr(coordinator, "ledger"):
        return {}
    return {
        "the ledger": {*coordinator.ledger.records, *coordinator.ledger.awaiting_start()},
        "the memory of successors": coordinator.successors._pending,
    }


# What each tier behind the scratch blocks is called, and the ranks whose blocks it holds.
_TIERS = {
    "spare": {"SPARE"},
    "every fourth spare": {"SPARE_4"},
    "every 16th spare": {"SPARE_16"},
    "every 64th spare": {"SPARE_64"},
    "marginal": {"MARGINAL"},
    "cached": {"KEPT", "ROLLING"},
    "protected": {"PROTECTED"},
    "pinned": {"PINNED"},
}


def _check_tiers(pool: BlockPool, tiers: Sequence[FreeKVCacheBlockQueue]) -> None:
    """What can be lost is never in front of what cannot."""
    scratch, *others = tiers
    for block in scratch.get_all_free_blocks():
        if block.block_hash is not None or block in pool.granules:
            raise IntegrityError(f"block {block.block_id} is cached, but among the scratch blocks")
    for tier, (name, ranks) in zip(others, _TIERS.items(), strict=True):
        for block in tier.get_all_free_blocks():
            rank = pool.rank(block).name
            if rank not in ranks:
                raise IntegrityError(
                    f"block {block.block_id} is {rank.lower()}, but among the {name} ones"
                )


def _count_references(kv_cache_manager: KVCacheManager) -> Counter[int]:
    """How many block tables hold each block, or copies are to be made of it."""
    references: Counter[int] = Counter()
    for manager in kv_cache_manager.coordinator.single_type_managers:
        for blocks in manager.req_to_blocks.values():
            references.update(block.block_id for block in blocks if not block.is_null)
    references.update(block.block_id for block in _copy_sources(kv_cache_manager))
    return references


def _copy_sources(kv_cache_manager: KVCacheManager) -> list[KVCacheBlock]:
    """Blocks that are referenced because a worker is to copy them."""
    ledger = getattr(kv_cache_manager.coordinator, "ledger", None)
    return [] if ledger is None else ledger.sources()


def _check_reference_counts(
    pool: BlockPool, free: set[int], references: Counter[int], sources: set[int]
) -> None:
    """Every block is free or referenced, and as often as it says."""
    for block in pool.blocks:
        block_id = block.block_id
        if block is pool.null_block:
            continue
        held = references[block_id]
        if block.is_null:
            raise IntegrityError(f"block {block_id} is marked null")
        if block.ref_cnt != held:
            raise IntegrityError(
                f"block {block_id}: ref_cnt {block.ref_cnt}, {held} tables hold it"
            )
        if (held == 0) != (block_id in free):
            where = "in" if block_id in free else "not in"
            raise IntegrityError(
                f"block {block_id}: {held} tables hold it, it is {where} the queue"
            )
        linked = block.prev_free_block is not None or block.next_free_block is not None
        if linked != (block_id in free):
            raise IntegrityError(f"block {block_id}: links of the free queue contradict its state")
        if held > 1 and block.block_hash is None and block_id not in sources:
            raise IntegrityError(f"block {block_id}: writable by {held} requests")


def _check_index(pool: BlockPool) -> None:
    """Every entry points at a block that knows the key, and the other way round."""
    entered: Counter[int] = Counter()
    # In later releases vLLM's own pool knows a block up to several tokens.
    other_keys: dict[int, set] = getattr(pool, "cached_block_hashes_by_block", {})
    for key, value in pool.cached_block_hash_to_block._cache.items():
        blocks: dict[int, KVCacheBlock] = (
            value if isinstance(value, dict) else {value.block_id: value}
        )
        if not blocks:
            raise IntegrityError(f"index: {bytes(key).hex()} names no block")
        for block_id, block in blocks.items():
            entered[block_id] += 1
            if block is not pool.blocks[block_id]:
                raise IntegrityError(f"index: entry {block_id} holds block {block.block_id}")
            if block.block_hash != key and key not in other_keys.get(block_id, ()):
                raise IntegrityError(f"index: block {block_id} does not know the key it is under")
    for block in pool.blocks:
        num_keys = len(other_keys.get(block.block_id, ())) + (block.block_hash is not None)
        if entered[block.block_id] != num_keys:
            raise IntegrityError(
                f"block {block.block_id}: its key is {block.block_hash!r}, "
                f"the index has it {entered[block.block_id]} times"
            )
    if pool.null_block.block_hash is not None:
        raise IntegrityError("the null block has a key")


def _check_duplicates(pool: BlockPool) -> None:
    """Idle blocks take memory for rows that no other block has."""
    drafts = getattr(pool, "draft_groups", None)
    if drafts is None:  # vLLM's own pool keeps all
        return
    for key, value in pool.cached_block_hash_to_block._cache.items():
        if isinstance(value, dict) and get_group_id(key) not in drafts:
            idle = [block_id for block_id, block in value.items() if not block.ref_cnt]
            if idle and len(value) > 1:
                raise IntegrityError(f"block {idle[0]}: idle, and {len(value) - 1} have its rows")


def _check_granules(pool: BlockPool) -> None:
    """Every granule entered leads to its block, and every block knows its granules."""
    granules = getattr(pool, "granules", None)
    if granules is None:
        return
    num_entries = 0
    for block in pool.blocks:
        hashes = granules.granules_of(block.block_id)
        if not hashes:
            continue
        group_id = granules.group_of[block.block_id]
        num_entries += len(hashes)
        for granule in hashes:
            if block.block_id not in granules.blocks_of(group_id, granule):
                raise IntegrityError(f"block {block.block_id}: a granule does not lead to it")
        if block.block_hash is not None and get_group_id(block.block_hash) != group_id:
            raise IntegrityError(
                f"block {block.block_id}: granules of group {group_id}, but a key"
                f" of group {get_group_id(block.block_hash)}"
            )
    for block_id in granules.kept_until:
        if block_id not in granules.known or pool.blocks[block_id].block_hash is not None:
            raise IntegrityError(f"block {block_id}: no copy could take its place, but one may")
    if num_entries != granules.num_entries():
        raise IntegrityError(
            f"{granules.num_entries()} granule entries, blocks know of {num_entries}"
        )


def _check_tables(kv_cache_manager: KVCacheManager) -> None:
    """No block in a table of one group is found under a key of another group."""
    for manager in kv_cache_manager.coordinator.single_type_managers:
        group_id = manager.kv_cache_group_id
        for request_id, blocks in manager.req_to_blocks.items():
            for block in blocks:
                key = block.block_hash
                if key is not None and get_group_id(key) != group_id:
                    raise IntegrityError(
                        f"block {block.block_id} is in the table of {request_id} in group "
                        f"{group_id}, its key is of group {get_group_id(key)}"
                    )


def _check_windows(kv_cache_manager: KVCacheManager) -> None:
    """No request holds more blocks of a window than it was let in with."""
    coordinator = kv_cache_manager.coordinator
    footprint = getattr(coordinator, "request_footprint", None)
    if footprint is None:
        return
    # Nobody has to have room for what spare tails are given for a step.
    spares: Counter[tuple[int, str]] = Counter()
    if not coordinator.plan.is_stock:
        given = coordinator.sparse_state.spares()
        spares.update((group.id, request_id) for request_id, group, _ in given)
    for manager in coordinator.single_type_managers:
        group_id = manager.kv_cache_group_id
        group = footprint.groups[group_id]
        if group is None or group.window is None:
            continue
        most = footprint.blocks(group_id)
        for request_id, blocks in manager.req_to_blocks.items():
            held = sum(not block.is_null for block in blocks) - spares[group_id, request_id]
            if held > most:
                raise IntegrityError(
                    f"{request_id} holds {held} blocks of group {group_id}, whose window of "
                    f"{group.window} tokens takes {most} at most"
                )
