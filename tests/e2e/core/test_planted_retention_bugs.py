# SPDX-License-Identifier: Apache-2.0
"""Bugs that keep too little, planted one at a time: caught by how much a replay must hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import Bench, check_churn, random_prompt
from vllm_ascend.core.layout.groups import Group
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.request_record import Tail
from vllm_ascend.core.retention.tail_cache import TailCache

Plant = Callable[[pytest.MonkeyPatch], None]


def edit_tails(edit: Callable[[range], range]) -> Plant:
    """Change which blocks of a kept tail are entered."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            Group,
            "tails",
            lambda group, boundaries: [i for b in boundaries for i in edit(group.tail(b))],
        )
        # Bookkeeping of what was entered would notice.
        patch.setattr(TailCache, "_tail", lambda *args: Tail(args[-1], ()))

    return plant


def one_block_early(ordinals: range) -> range:
    """Every tail is kept one block before its boundary."""
    return range(max(ordinals.start - 1, 0), ordinals.stop - 1)


def skip_a_boundary_at_the_end_of_a_chunk(patch: pytest.MonkeyPatch) -> None:
    """Forget the boundary that the chunk being cached ends on."""
    held, advance = TailCache._held, TailCache.advance

    def advance_to(self, record, end):
        self.end = end
        return advance(self, record, end)

    def held_but_for_the_end(self, *args):
        return [b for b in held(self, *args) if b != self.end]

    patch.setattr(TailCache, "_held", held_but_for_the_end)
    patch.setattr(TailCache, "advance", advance_to)


def replay_hits_its_boundary(layout: str, make_engine: MakeEngine) -> None:
    """The chunk ends on the boundary."""
    bench = Bench(make_engine, layout, "0")
    unit = bench.alignment
    bench = Bench(make_engine, layout, "0", max_num_batched_tokens=2 * unit)
    prompt = random_prompt(3, 2 * unit + 1)
    bench.hit(prompt)
    assert bench.hit(prompt) == 2 * unit, "the replay boundary is not kept"


@pytest.mark.parametrize("layout", ["gemma", "dsv4-stock", "dsv4-rows"])
@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(edit_tails(lambda tail: tail[1:]), id="tail without its first block"),
        pytest.param(edit_tails(lambda tail: tail[:-1]), id="tail without its last block"),
        pytest.param(edit_tails(one_block_early), id="tail one block early"),
        skip_a_boundary_at_the_end_of_a_chunk,
    ],
)
def test_a_lost_boundary_is_noticed(
    plant: Plant, layout: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay_hits_its_boundary(layout, make_engine)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="the replay boundary is not kept"):
        replay_hits_its_boundary(layout, make_engine)


def free_cached_blocks_to_the_front(patch: pytest.MonkeyPatch) -> None:
    """Reuse what was cached last before anything else."""

    def free_blocks(self, ordered_blocks: Iterable, prepend: bool = False) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        self.free_block_queue.prepend_n(
            [block for block in blocks if block.ref_cnt == 0 and not block.is_null]
        )

    patch.setattr(AscendBlockPool, "free_blocks", free_blocks)


def free_scratch_blocks_to_the_back(patch: pytest.MonkeyPatch) -> None:
    """Let what windows leave behind push cached prefixes out, as stock vLLM does."""

    def free_blocks(self, ordered_blocks: Iterable, prepend: bool = False) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        self.free_block_queue.append_n(
            [block for block in blocks if block.ref_cnt == 0 and not block.is_null]
        )

    patch.setattr(AscendBlockPool, "free_blocks", free_blocks)


@pytest.mark.parametrize("layout", ["gemma", "dsv4-stock", "dsv4-rows"])
@pytest.mark.parametrize(
    "plant", [free_cached_blocks_to_the_front, free_scratch_blocks_to_the_back]
)
def test_a_wrong_order_of_eviction_is_noticed(
    plant: Plant, layout: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"kept prefix was evicted|among the scratch blocks"):
        check_churn(layout, make_engine)


def free_unfinished_blocks_as_scratch(patch: pytest.MonkeyPatch) -> None:
    """Reuse blocks that only their granules are known of before anything else."""
    original = AscendBlockPool.free_blocks

    def free_blocks(self, *args, **kwargs) -> None:
        known, self.granules.known = self.granules.known, {}
        original(self, *args, **kwargs)
        self.granules.known = known

    patch.setattr(AscendBlockPool, "free_blocks", free_blocks)


def test_an_unfinished_block_is_as_cached_as_a_full_one(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_unfinished_blocks_as_scratch(monkeypatch)
    with pytest.raises(AssertionError, match="among the scratch blocks"):
        check_churn("dsv4-rows-partial", make_engine)
