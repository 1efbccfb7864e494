# SPDX-License-Identifier: Apache-2.0
"""Blocks hold one group's rows at a time; giving, zeroing and copying move whole pages."""

from __future__ import annotations

from vllm_ascend_evaluation.oracle.digests import UNWRITTEN
from vllm_ascend_evaluation.oracle.groups import Drafts, GroupRules, Kind
from vllm_ascend_evaluation.oracle.shadow_memory import Life, ShadowMemory

RULES = [
    GroupRules(Kind.FULL, 4),
    GroupRules(Kind.SLIDING, 2, window=4, drafts=Drafts.NEXT_TOKEN),
]


def memory_with(block_id: int, group_id: int, life: Life) -> ShadowMemory:
    memory = ShadowMemory(8, RULES)
    memory.give(block_id, group_id, life)
    memory.rows[group_id][block_id] = 77
    if group_id in memory.draft_rows:
        memory.draft_rows[group_id][block_id] = 78
    return memory


def test_giving_a_block_to_another_group_loses_its_rows() -> None:
    """The groups share raw tensors: a block that went round comes back empty."""
    memory = memory_with(3, 1, Life("a"))
    memory.give(3, 0, Life("b"))
    memory.give(3, 1, Life("a"))
    assert (memory.rows[1][3] == UNWRITTEN).all()
    assert (memory.draft_rows[1][3] == UNWRITTEN).all()


def test_zeroing_keeps_the_owner() -> None:
    life = Life("a")
    memory = memory_with(3, 0, life)
    memory.wipe([3])
    assert (memory.rows[0][3] == UNWRITTEN).all()
    assert memory.owner[3] is life


def test_a_copy_is_a_whole_page_and_belongs_to_its_new_owner() -> None:
    old, new = Life("a"), Life("b")
    memory = memory_with(3, 1, old)
    memory.give(5, 1, new)
    memory.copy(3, 5)
    assert (memory.rows[1][5] == 77).all()
    assert (memory.draft_rows[1][5] == 78).all()
    assert memory.owner[5] is new
    assert memory.writer_name(3) == "a"
    memory.rows[1][3] = 1
    assert (memory.rows[1][5] == 77).all()


def test_copying_an_unused_block_empties_the_target() -> None:
    memory = memory_with(3, 0, Life("a"))
    memory.copy(6, 3)
    assert (memory.rows[0][3] == UNWRITTEN).all()
    assert memory.writer_name(6) is None


def test_every_change_of_a_block_changes_its_epoch() -> None:
    memory = memory_with(3, 0, Life("a"))
    seen = {int(memory.epoch[3])}
    memory.give(3, 0, Life("b"))
    seen.add(int(memory.epoch[3]))
    memory.wipe([3])
    seen.add(int(memory.epoch[3]))
    memory.copy(4, 3)
    seen.add(int(memory.epoch[3]))
    assert len(seen) == 4
