# SPDX-License-Identifier: Apache-2.0
"""Bugs that keep too little, planted one at a time: caught by how much a replay must hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from vllm.v1.core.block_pool import BlockPool

from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import Bench, check_churn, random_prompt
from vllm_ascend.core import single_type_kv_cache_manager

Plant = Callable[[pytest.MonkeyPatch], None]


def edit_mask(edit: Callable[[list[bool]], list[bool]]) -> Plant:
    """Change the mask of kept blocks."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = single_type_kv_cache_manager.retained_block_mask

        def retained_block_mask(*args, **kwargs):
            mask = original(*args, **kwargs)
            return None if mask is None else edit(mask)

        patch.setattr(single_type_kv_cache_manager, "retained_block_mask", retained_block_mask)

    return plant


def without_first(mask: list[bool]) -> list[bool]:
    """Every tail lacks its first block."""
    return [kept and i > 0 and mask[i - 1] for i, kept in enumerate(mask)]


def without_last(mask: list[bool]) -> list[bool]:
    """Every tail lacks its last block."""
    return [kept and i + 1 < len(mask) and mask[i + 1] for i, kept in enumerate(mask)]


def one_block_late(mask: list[bool]) -> list[bool]:
    """Every tail is kept one block behind its boundary."""
    return [False, *mask[:-1]]


def skip_a_boundary_at_the_end_of_a_chunk(patch: pytest.MonkeyPatch) -> None:
    """Forget the replay boundary when the chunk being cached ends on it."""
    original = single_type_kv_cache_manager.retained_block_mask

    def retained_block_mask(start_block, end_block, *, block_tokens, **kwargs):
        if kwargs["replay_boundary_tokens"] == end_block * block_tokens:
            kwargs["replay_boundary_tokens"] = None
        return original(start_block, end_block, block_tokens=block_tokens, **kwargs)

    patch.setattr(single_type_kv_cache_manager, "retained_block_mask", retained_block_mask)


def replay_hits_its_boundary(layout: str, make_engine: MakeEngine) -> None:
    """The chunk ends on the boundary, and the mask covers one tail only."""
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
        pytest.param(edit_mask(without_first), id="tail without its first block"),
        pytest.param(edit_mask(without_last), id="tail without its last block"),
        pytest.param(edit_mask(one_block_late), id="tail one block late"),
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

    patch.setattr(BlockPool, "free_blocks", free_blocks)


def free_scratch_blocks_to_the_back(patch: pytest.MonkeyPatch) -> None:
    """Let what windows leave behind push cached prefixes out, as stock vLLM does."""

    def free_blocks(self, ordered_blocks: Iterable, prepend: bool = False) -> None:
        blocks = list(ordered_blocks)
        for block in blocks:
            block.ref_cnt -= 1
        self.free_block_queue.append_n(
            [block for block in blocks if block.ref_cnt == 0 and not block.is_null]
        )

    patch.setattr(BlockPool, "free_blocks", free_blocks)


@pytest.mark.parametrize("layout", ["gemma", "dsv4-stock", "dsv4-rows"])
@pytest.mark.parametrize(
    "plant", [free_cached_blocks_to_the_front, free_scratch_blocks_to_the_back]
)
def test_a_wrong_order_of_eviction_is_noticed(
    plant: Plant, layout: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="kept prefix was evicted"):
        check_churn(layout, make_engine)
