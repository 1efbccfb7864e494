# SPDX-License-Identifier: Apache-2.0
"""What a request gives back, and in which order, from the block lists of vLLM's managers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from tests.ut.core.real_groups import full, make_groups, window
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.layout.specs import ReadSpan
from vllm_ascend.core.retention.freed_blocks import (
    PlacedBlocks,
    leave_behind,
    take_remaining_blocks,
)
from vllm_ascend.core.retention.request_record import RequestRecord


class Held:
    """A request with blocks 1 to 6 in one group; 0 is the null block."""

    def __init__(self, spec=None) -> None:
        self.pool = BlockPool(20, True, 4)
        self.group: Group = make_groups(spec or window(4, 9), alignment=4, pool=self.pool)[0]
        self.blocks = self.group.manager.req_to_blocks["r"] = self.pool.get_new_blocks(6)
        self.record = RequestRecord(next_free=1000)

    def leave(self, num_tokens: int) -> list[tuple[int, int]]:
        """Let the window move on; return what it left, as (first token, block id)."""
        null = self.pool.null_block
        return ids(leave_behind(self.group, self.record, "r", num_tokens, null))

    def ids(self) -> list[int]:
        return [block.block_id for block in self.blocks]


def ids(placed: PlacedBlocks) -> list[tuple[int, int]]:
    """Return (first token, block id) of each."""
    return [(s, b.block_id) for s, b in zip(placed.starts, placed.blocks, strict=True)]


def test_deep_blocks_go_first_over_all_groups():
    placed = PlacedBlocks()
    for block_id, start_token in enumerate((0, 8, 16, 8, 4)):
        placed.append(start_token, KVCacheBlock(block_id))
    assert [block.block_id for block in placed.deep_first()] == [2, 1, 3, 4, 0]


@pytest.mark.parametrize(
    ("num_tokens", "left", "next_free"),
    [
        (0, [], 12),
        (11, [], 12),
        (12, [(0, 1)], 16),  # token 12 reads [4, 12)
        (15, [(0, 1)], 16),
        (20, [(0, 1), (4, 2), (8, 3)], 24),
    ],
)
def test_a_window_of_9_tokens_leaves_blocks_of_4_behind(num_tokens, left, next_free):
    held = Held()
    assert held.leave(num_tokens) == left
    assert held.ids() == [0] * len(left) + [1, 2, 3, 4, 5, 6][len(left) :]
    assert held.record.next_free == next_free


@pytest.mark.parametrize(
    ("num_tokens", "left", "next_free"),
    [
        (0, [], 16),
        (15, [], 16),  # its window is open from its first token on
        (16, [(0, 1), (4, 2)], 24),  # the state of window [8, 16) is read once more
        (23, [(0, 1), (4, 2)], 24),
        (24, [(0, 1), (4, 2), (8, 3), (12, 4)], 32),
    ],
)
def test_open_windows_of_8_tokens_that_overlap_leave_blocks_of_4_behind(
    num_tokens, left, next_free
):
    held = Held()
    held.group = replace(held.group, held=ReadSpan(8, step=8))
    assert held.leave(num_tokens) == left
    assert held.record.next_free == next_free


def test_what_was_left_is_not_left_again():
    held = Held()
    held.leave(16)
    assert held.leave(16) == []
    assert held.leave(24) == [(8, 3), (12, 4)]
    assert held.record.freed == {0: 4}


def test_null_blocks_are_passed_over_and_blocks_behind_the_end_are_none():
    held = Held()
    held.blocks[0] = held.pool.null_block  # behind a hit, where the window had moved on before
    assert held.leave(200) == [(4, 2), (8, 3), (12, 4), (16, 5), (20, 6)]


def test_the_earliest_window_decides_when_to_look_again():
    held = Held()
    held.record.next_free = 14
    held.leave(12)
    assert held.record.next_free == 14


def test_an_ended_request_gives_everything_back_but_what_it_had_left():
    held = Held()
    held.leave(16)
    taken = take_remaining_blocks(held.group, held.record, "r", held.pool.null_block)
    assert ids(taken) == [(8, 3), (12, 4), (16, 5), (20, 6)]
    assert "r" not in held.group.manager.req_to_blocks
    assert not take_remaining_blocks(held.group, held.record, "r", held.pool.null_block)


def test_a_request_without_a_record_gives_everything_back():
    held = Held(full(8))
    taken = take_remaining_blocks(held.group, None, "r", held.pool.null_block)
    assert taken.starts == [0, 8, 16, 24, 32, 40]
