# SPDX-License-Identifier: Apache-2.0
"""What is told of blocks that come and go, one rule at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher

from tests.ut.core.helpers import make_request
from vllm_ascend.core.events.announcement import PREFIX, TAIL, AnnouncedGroup
from vllm_ascend.core.events.kv_event_log import KVEventLog
from vllm_ascend.core.layout.block_names import BlockNames
from vllm_ascend.kv_events.layout import EngineRules

GRANULE = 4
COARSE, WINDOW, FINE = 0, 1, 2
RULES = EngineRules(num_groups=3, alignment=8, hash_tokens=GRANULE)


@pytest.fixture(autouse=True)
def _names_are_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")


def group(group_id: int, rule: str, block_tokens: int, **kwargs) -> AnnouncedGroup:
    unit = GRANULE if rule == PREFIX else block_tokens
    given = AnnouncedGroup(group_id, rule, block_tokens, unit, 3, False, False, "kind", None)
    return replace(given, **kwargs)


def make_log(**coarse) -> KVEventLog:
    log = KVEventLog(GRANULE)
    log.describe(
        [group(COARSE, PREFIX, 8, **coarse), group(WINDOW, TAIL, 4), group(FINE, PREFIX, 2)], RULES
    )
    assert len(log.take()) == 3
    return log


REQUEST = make_request("r", list(range(100, 132)), get_request_block_hasher(GRANULE, sha256))
HASHES = REQUEST.block_hashes
BLOCKS = [KVCacheBlock(i) for i in range(1, 17)]
COPIES = [KVCacheBlock(i) for i in range(17, 33)]


def enter(log: KVEventLog, group_id: int, tokens: int, ordinals: list[int], blocks=BLOCKS) -> None:
    names = BlockNames(HASHES, GRANULE, tokens)
    log.blocks_stored(group_id, REQUEST, names, blocks, ordinals, tokens)


def test_a_name_is_told_with_its_first_copy_and_its_last():
    log = make_log()
    enter(log, WINDOW, 4, [0, 1])
    enter(log, WINDOW, 4, [1], COPIES)
    (event,) = log.take()
    assert event.block_hashes == HASHES[:2]
    log.block_evicted(BLOCKS[1].block_id)
    assert log.take() == []
    log.block_evicted(COPIES[1].block_id)
    assert log.take() == [BlockRemoved([HASHES[1]], "GPU", WINDOW)]


def test_runs_are_told_apart_and_what_follows_on_is_not():
    log = make_log()
    enter(log, WINDOW, 4, [1, 3])
    enter(log, WINDOW, 4, [4])
    first, second = log.take()
    assert (first.parent_block_hash, first.block_hashes) == (HASHES[0], [HASHES[1]])
    assert (second.parent_block_hash, second.block_hashes) == (HASHES[2], HASHES[3:5])
    assert second.token_ids == list(range(112, 120))
    assert second.extra_keys == [None, None]


def test_blocks_of_a_prefix_are_told_in_granules():
    log = make_log()
    enter(log, COARSE, 8, [1])
    (event,) = log.take()
    assert (event.block_size, event.block_hashes) == (GRANULE, HASHES[2:4])
    assert event.token_ids == list(range(108, 116))
    log.block_evicted(BLOCKS[1].block_id)
    assert log.take() == [BlockRemoved(HASHES[2:4], "GPU", COARSE)]


def test_a_granule_of_fine_blocks_is_told_once_it_is_whole():
    log = make_log()
    enter(log, FINE, 2, [0, 1, 2])
    (event,) = log.take()
    assert (event.block_size, event.block_hashes) == (GRANULE, HASHES[:1])
    enter(log, FINE, 2, [3])
    (event,) = log.take()
    assert event.block_hashes == HASHES[1:2]
    log.block_evicted(BLOCKS[0].block_id)
    assert log.take() == [BlockRemoved(HASHES[:1], "GPU", FINE)]
    log.block_evicted(BLOCKS[1].block_id)
    assert log.take() == []


def test_where_hits_end_inside_blocks_granules_are_told_as_they_come():
    log = make_log(ends_inside=True)
    log.granules_stored(COARSE, REQUEST, BLOCKS, range(3), per_block=2)
    (event,) = log.take()
    assert event.block_hashes == HASHES[:3]
    enter(log, COARSE, 8, [0])
    assert log.take() == []


def test_what_will_not_be_written_is_taken_back():
    log = make_log(ends_inside=True)
    log.granules_stored(COARSE, REQUEST, BLOCKS, range(3), per_block=2)
    log.granules_withdrawn(BLOCKS[1].block_id, HASHES[2:3])
    assert log.take()[-1] == BlockRemoved(HASHES[2:3], "GPU", COARSE)
    # The block is somebody else's next.
    enter(log, WINDOW, 4, [1])
    log.block_evicted(BLOCKS[1].block_id)
    assert log.take()[-1] == BlockRemoved([HASHES[1]], "GPU", WINDOW)


def test_a_successor_is_told_under_an_index_of_its_own():
    log = make_log()
    log.successor_known(WINDOW, REQUEST, BLOCKS[0].block_id, 4)
    log.successor_known(WINDOW, REQUEST, BLOCKS[0].block_id, 4)
    (event,) = log.take()
    assert (event.group_idx, event.block_size) == (3 + WINDOW, GRANULE)
    assert (event.parent_block_hash, event.block_hashes) == (HASHES[0], [HASHES[1]])
    assert event.token_ids == list(range(104, 108))
    log.successor_unknown(BLOCKS[0].block_id)
    log.successor_unknown(BLOCKS[0].block_id)
    assert log.take() == [BlockRemoved([HASHES[1]], "GPU", 3 + WINDOW)]


def test_an_evicted_block_takes_its_successor_with_it():
    log = make_log()
    enter(log, WINDOW, 4, [0])
    log.successor_known(WINDOW, REQUEST, BLOCKS[0].block_id, 4)
    log.take()
    log.block_evicted(BLOCKS[0].block_id)
    assert log.take() == [
        BlockRemoved([HASHES[0]], "GPU", WINDOW),
        BlockRemoved([HASHES[1]], "GPU", 3 + WINDOW),
    ]


def test_another_successor_takes_the_place_of_the_first():
    log = make_log()
    log.successor_known(WINDOW, REQUEST, BLOCKS[0].block_id, 4)
    log.take()
    log.successor_known(WINDOW, REQUEST, BLOCKS[0].block_id, 8)
    removed, stored = log.take()
    assert removed == BlockRemoved([HASHES[1]], "GPU", 3 + WINDOW)
    assert stored.block_hashes == [HASHES[2]]


def test_clearing_forgets_the_copies_and_describes_the_groups_anew():
    log = make_log()
    enter(log, WINDOW, 4, [0])
    log.cleared()
    enter(log, WINDOW, 4, [0], COPIES)
    _, cleared, *descriptions, again = log.take()
    assert isinstance(cleared, AllBlocksCleared)
    assert [event.block_hashes for event in descriptions] == [[]] * 3
    assert isinstance(again, BlockStored)
    assert again.block_hashes == HASHES[:1]
    log.block_evicted(BLOCKS[0].block_id)
    assert log.take() == []
