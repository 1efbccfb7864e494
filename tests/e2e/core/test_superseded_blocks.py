# SPDX-License-Identifier: Apache-2.0
"""Blocks whose place others have taken: tails behind which a request went on, sources of copies."""

from __future__ import annotations

import pytest

from tests.e2e.core.configurations import EVICTION, SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import Bench, random_prompt
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend_evaluation.oracle import IntegrityError


def ranks_of_tail(bench: Bench, prompt: list[int], boundary: int) -> set[Rank]:
    """Return the ranks of the tail that a hit which ends at a boundary rests on."""
    coordinator, blocks = bench.engine.manager.coordinator, bench.blocks_of_hit(prompt, boundary)
    tail = coordinator.tails.tail_of_hit(blocks, boundary)
    return {coordinator.block_pool.rank(entry.block) for entry in tail.blocks}


# Where tails have no block in common, and hits end inside blocks.
LAYOUTS = ["dsv4-rows-partial", "dsv4-rows-sparse"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_goes_on_behind_a_tail_and_keeps_a_deeper_one_supersedes_it(
    layout: str, make_engine: MakeEngine
) -> None:
    """Of a chat that grows turn by turn the last tail alone is kept."""
    bench = Bench(make_engine, layout, "auto", switches={SPARE: "1"})
    unit = bench.alignment
    prompt = random_prompt(1, 40 * unit)
    ends = [4 * unit, 12 * unit, 24 * unit]
    for before, end in zip([0, *ends], ends, strict=False):
        # The next one leaves it where this one's own end begins.
        turn = prompt[:end] + random_prompt(end, unit + 1)
        assert bench.hit(turn, max_tokens=1) == before
        assert min(ranks_of_tail(bench, prompt, end)) >= Rank.KEPT
        if before:
            assert ranks_of_tail(bench, prompt, before) == {Rank.MARGINAL}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tail_stays_where_others_went_on_as_well(layout: str, make_engine: MakeEngine) -> None:
    """Two that hit it, or one that found none there and left its own."""
    bench = Bench(make_engine, layout, "auto", switches={SPARE: "1"})
    unit = bench.alignment
    prompt, end = random_prompt(1, 4 * unit + 1), 4 * unit

    def goes_on(seed: int) -> list[int]:
        return prompt[:end] + random_prompt(seed, 12 * unit)

    bench.hit(prompt)
    assert bench.hit(goes_on(2)) == end
    assert ranks_of_tail(bench, prompt, end) == {Rank.MARGINAL}
    for seed in (3, 4):
        assert bench.hit(goes_on(seed)) == end
        assert min(ranks_of_tail(bench, prompt, end)) >= Rank.KEPT

    bench.fresh()
    bench.hit(goes_on(5))
    bench.give_up_tails()
    assert bench.hit(goes_on(6)) == 0
    assert bench.hit(goes_on(7)) == end
    assert min(ranks_of_tail(bench, prompt, end)) >= Rank.KEPT


def test_a_tail_stays_that_shares_blocks_with_others(make_engine: MakeEngine) -> None:
    bench = Bench(make_engine, "gemma", "auto", switches={SPARE: "1"})
    unit = bench.alignment
    prompt = random_prompt(1, 40 * unit)
    assert bench.hit(prompt[: 4 * unit + 1], max_tokens=1) == 0
    assert bench.hit(prompt, max_tokens=1) == 4 * unit
    assert min(ranks_of_tail(bench, prompt, 4 * unit)) >= Rank.KEPT


def unfinished(bench: Bench) -> dict[int, Rank]:
    """Return the ranks of the blocks that hits may only be copied from, by block id."""
    pool = bench.engine.manager.block_pool
    blocks = [pool.blocks[block_id] for block_id in pool.granules.known]
    return {b.block_id: pool.rank(b) for b in blocks if b.block_hash is None}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_copy_that_a_chat_goes_on_with_takes_its_sources_place(
    layout: str, make_engine: MakeEngine
) -> None:
    """Of a block of 64 tokens that a prompt of 48 leaves unfinished there is one, turn by turn."""
    bench = Bench(make_engine, layout, "auto", switches={SPARE: "1"})
    prompt = random_prompt(1, 3 * bench.alignment + 1)
    bench.hit(prompt)
    ((first, rank),) = unfinished(bench).items()
    assert rank >= Rank.KEPT
    kept = {first}
    for max_tokens in (1, 2, 4):
        assert bench.hit(prompt, max_tokens) == 3 * bench.alignment
        ranks = unfinished(bench)
        assert ranks.pop(first) is Rank.MARGINAL
        assert ranks and min(ranks.values()) >= Rank.KEPT
        kept |= set(ranks)
    assert len(kept) == 4, "each has had a copy of its own"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_units", [1, 2])
def test_a_copy_of_less_than_was_kept_takes_nobodys_place(
    num_units: int, layout: str, make_engine: MakeEngine
) -> None:
    bench = Bench(make_engine, layout, "auto", switches={SPARE: "1"})
    unit = bench.alignment
    prompt = random_prompt(1, 3 * unit + 1)
    bench.hit(prompt)
    (first,) = unfinished(bench)
    other = prompt[: num_units * unit + 3] + random_prompt(2, unit)
    assert bench.hit(other) == num_units * unit
    assert unfinished(bench)[first] >= Rank.KEPT
    assert bench.hit(prompt) == 3 * unit


def test_a_copy_takes_the_place_of_its_source_when_who_wrote_that_ends(
    make_engine: MakeEngine,
) -> None:
    """Until then it may yet be filled, and end behind what was copied."""
    bench = Bench(make_engine, "dsv4-rows-partial", "auto", max_num_seqs=2, switches={SPARE: "1"})
    unit = bench.alignment
    prompt = random_prompt(1, 2 * unit + 1)
    bench.engine.add("first", prompt, max_tokens=9)
    for _ in range(3):
        bench.engine.step()
    (first,) = unfinished(bench)
    bench.engine.add("second", prompt, max_tokens=12)
    for _ in range(3):
        bench.engine.step()
    assert bench.engine.hits["second"] == 2 * unit
    assert unfinished(bench)[first] >= Rank.KEPT
    bench.engine.run()
    ranks = unfinished(bench)
    assert ranks.pop(first) is Rank.MARGINAL
    assert ranks and min(ranks.values()) >= Rank.KEPT


def test_a_copy_takes_no_place_beside_somebody_who_goes_on(make_engine: MakeEngine) -> None:
    """Whoever wrote the block may yet fill it, and end behind what was copied."""
    bench = Bench(make_engine, "dsv4-rows-partial", "auto", max_num_seqs=2, switches={SPARE: "1"})
    prompt = random_prompt(1, 3 * bench.alignment + 1)
    bench.engine.add("first", prompt, max_tokens=12)
    for _ in range(3):
        bench.engine.step()
    (first,) = unfinished(bench)
    assert bench.hit(prompt) == 3 * bench.alignment
    assert "first" not in bench.engine.alive, "both have ended, and the first one last"
    assert unfinished(bench)[first] >= Rank.KEPT


def test_a_copy_that_goes_earlier_takes_no_place(make_engine: MakeEngine) -> None:
    """Somebody new takes over little of a prompt that returns, and is not protected for it."""
    switches = {SPARE: "1", EVICTION: "protect"}
    bench = Bench(make_engine, "dsv4-rows-partial", "auto", switches=switches)
    pool, boundary = bench.engine.manager.block_pool, 3 * bench.alignment
    prompt = random_prompt(1, boundary + 1)
    bench.hit(prompt)
    (first,) = unfinished(bench)
    assert bench.hit(prompt) == boundary
    pool.give_up(pool.blocks[first])
    ((protected, rank),) = unfinished(bench).items()
    assert rank is Rank.PROTECTED
    assert bench.hit(prompt[:boundary] + random_prompt(2, 5 * boundary)) == boundary
    assert unfinished(bench)[protected] is Rank.PROTECTED
    assert bench.hit(prompt) == boundary
    assert unfinished(bench)[protected] is Rank.MARGINAL


def test_a_block_whose_place_nobody_can_take_is_noticed(make_engine: MakeEngine) -> None:
    bench = Bench(make_engine, "dsv4-rows-partial", "auto", switches={SPARE: "1"})
    bench.hit(random_prompt(1, 3 * bench.alignment + 1))
    pool = bench.engine.manager.block_pool
    (unfinished_id,) = unfinished(bench)
    assert list(pool.granules.kept_until) == [unfinished_id]
    pool.granules.kept_until[next(b.block_id for b in pool.blocks if b.block_hash)] = 1
    with pytest.raises(IntegrityError, match="no copy could take its place"):
        bench.engine.check()
