# SPDX-License-Identifier: Apache-2.0
"""Every invariant of the pool, broken once and noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

from tests.ut.evaluation.oracle.conftest import Bench
from vllm_ascend_evaluation.oracle import IntegrityError, check_drained, check_integrity

PROMPT = list(range(20))


@pytest.fixture
def busy(bench: Bench) -> Bench:
    """One request has ended and left cached blocks, one is running on a shared prefix."""
    bench.add("old", PROMPT, max_tokens=1)
    bench.run()
    bench.add("new", [*PROMPT[:8], *range(50, 64)], max_tokens=20)
    bench.step()
    check_integrity(bench.scheduler.kv_cache_manager)
    return bench


def pool(bench: Bench):
    return bench.scheduler.kv_cache_manager.block_pool


def running_block(bench: Bench, ordinal: int = -1):
    managers = bench.scheduler.kv_cache_manager.coordinator.single_type_managers
    return managers[3].req_to_blocks["new"][ordinal]


def count_up(bench: Bench) -> None:
    running_block(bench).ref_cnt += 1


def count_down(bench: Bench) -> None:
    running_block(bench).ref_cnt -= 1


def queue_used_block(bench: Bench) -> None:
    pool(bench).free_block_queue.append(running_block(bench))


def lose_free_block(bench: Bench) -> None:
    pool(bench).free_block_queue.popleft()


def queue_null_block(bench: Bench) -> None:
    pool(bench).free_block_queue.append(pool(bench).null_block)


def miscount_queue(bench: Bench) -> None:
    pool(bench).free_block_queue.num_free_blocks += 1


def break_back_link(bench: Bench) -> None:
    queue = pool(bench).free_block_queue
    first = queue.fake_free_list_head.next_free_block
    first.next_free_block.prev_free_block = queue.fake_free_list_head


def close_circle(bench: Bench) -> None:
    queue = pool(bench).free_block_queue
    first = queue.fake_free_list_head.next_free_block
    second = first.next_free_block
    second.next_free_block = first
    first.prev_free_block = second


def forget_key(bench: Bench) -> None:
    running_block(bench, 0)._block_hash = None


def orphan_key(bench: Bench) -> None:
    block = running_block(bench, 0)
    pool(bench).cached_block_hash_to_block.pop(block.block_hash, block.block_id)


def wrong_entry(bench: Bench) -> None:
    index = pool(bench).cached_block_hash_to_block._cache
    index[running_block(bench, 0).block_hash] = running_block(bench)


def foreign_key(bench: Bench) -> None:
    block = running_block(bench)
    key = make_block_hash_with_group_id(b"x" * 32, 1)
    block.block_hash = key
    pool(bench).cached_block_hash_to_block.insert(key, block)


def hide_block(bench: Bench) -> None:
    running_block(bench).is_null = True


def share_writable_block(bench: Bench) -> None:
    block = running_block(bench)
    managers = bench.scheduler.kv_cache_manager.coordinator.single_type_managers
    managers[3].req_to_blocks["other"].append(block)
    block.ref_cnt += 1


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (count_up, "ref_cnt 2, 1 tables hold it"),
        (count_down, "ref_cnt 0, 1 tables hold it"),
        (queue_used_block, "1 tables hold it, it is in the queue"),
        (lose_free_block, "0 tables hold it, it is not in the queue"),
        (queue_null_block, "the null block is in it"),
        (miscount_queue, "counted"),
        (break_back_link, "wrong back link"),
        (close_circle, "wrong back link|circle"),
        (forget_key, "does not know the key"),
        (orphan_key, "the index has it 0 times"),
        (wrong_entry, "does not know the key"),
        (foreign_key, "its key is of group 1"),
        (hide_block, "marked null"),
        (share_writable_block, "writable by 2 requests"),
    ],
)
def test_damage_is_noticed(busy: Bench, damage: Callable[[Bench], None], problem: str) -> None:
    damage(busy)
    with pytest.raises(IntegrityError, match=problem):
        check_integrity(busy.scheduler.kv_cache_manager)


def test_a_drained_pool_is_clean(busy: Bench) -> None:
    busy.run()
    assert busy.scheduler.reset_prefix_cache()
    check_drained(busy.scheduler.kv_cache_manager)


def test_leftovers_are_noticed(busy: Bench) -> None:
    """Blocks still held, keys that survive, and requests that managers still remember."""
    manager = busy.scheduler.kv_cache_manager
    with pytest.raises(IntegrityError, match="are free at the end"):
        check_drained(manager)
    busy.run()
    with pytest.raises(IntegrityError, match="keys are left after a reset"):
        check_drained(manager)
    assert busy.scheduler.reset_prefix_cache()
    manager.coordinator.single_type_managers[1].num_cached_block["ghost"] = 0
    with pytest.raises(IntegrityError, match=r"group 1 remembers \['ghost'\]"):
        check_drained(manager)
