# SPDX-License-Identifier: Apache-2.0
"""Boundaries that only the traffic shows: where answers end, and where prompts part."""

from __future__ import annotations

import pytest
from vllm.utils.math_utils import cdiv

from tests.e2e.core.configurations import SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import LAYOUTS, Bench, check_churn, random_prompt
from vllm_ascend.core.policy.ranks import Rank

FINE = [name for name in LAYOUTS if name.startswith(("gemma", "dsv4-rows-"))]


def branch(prompt: list[int], cut: int, seed: int) -> list[int]:
    """A prompt that leaves another one behind its first ``cut`` tokens."""
    return prompt[:cut] + [token + 1000 for token in random_prompt(seed, 40)]


@pytest.mark.parametrize("num_drafts", [0, 2], ids=["plain", "mtp"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_next_turn_resumes_where_the_answer_ended(
    layout: str, num_drafts: int, make_engine: MakeEngine
) -> None:
    """The last token of an answer is never computed; all before it are."""
    bench = Bench(make_engine, layout, "0", num_drafts=num_drafts)
    unit, behind = bench.alignment, bench.hash_block_size if num_drafts else 0
    for answer in (1, 2, unit - 1, unit, unit + 1, 2 * unit + 3):
        prompt = random_prompt(answer, unit + 5)
        bench.hit(prompt, max_tokens=answer)
        told = prompt + list(bench.engine.outputs[f"r{bench.count}"])
        expected = (len(told) - 1 - behind) // unit * unit
        assert bench.hit(told + random_prompt(answer + 1, unit + 1)) == expected, answer
        bench.fresh()


@pytest.mark.parametrize("layout", FINE)
def test_the_third_request_hits_where_the_second_parted(
    layout: str, make_engine: MakeEngine
) -> None:
    """Nobody asked to keep that boundary until somebody left there; who did pays once."""
    bench = Bench(make_engine, layout, "0")
    for cut in range(bench.alignment, 4 * bench.alignment, 5):
        prompt = random_prompt(cut, 5 * bench.alignment)
        bench.hit(prompt)
        assert bench.hit(branch(prompt, cut, 1)) == 0
        assert bench.hit(branch(prompt, cut, 2)) == cut // bench.alignment * bench.alignment, cut
        bench.fresh()


@pytest.mark.parametrize("layout", FINE)
def test_with_spare_tails_the_second_request_hits(layout: str, make_engine: MakeEngine) -> None:
    """At any offset, while memory is idle; however the prefill was cut."""
    for chunk in (1000, 56):
        bench = Bench(make_engine, layout, "0", max_num_batched_tokens=chunk, switches={SPARE: "1"})
        for cut in range(1, 4 * bench.alignment, 3):
            prompt = random_prompt(cut, 5 * bench.alignment)
            bench.hit(prompt)
            expected = cut // bench.alignment * bench.alignment
            assert bench.hit(branch(prompt, cut, 1)) == expected, (chunk, cut)
            bench.fresh()


@pytest.mark.parametrize("layout", FINE)
def test_nothing_kept_is_lost_to_spare_tails(layout: str, make_engine: MakeEngine) -> None:
    """A pool that just holds what is kept without spare tails still does with them."""
    check_churn(layout, make_engine, switches={SPARE: "1"})


@pytest.mark.parametrize("layout", FINE)
def test_a_spare_tail_that_is_hit_is_kept(layout: str, make_engine: MakeEngine) -> None:
    """Other spare tails go when memory is needed; this one stays."""
    bench = Bench(
        make_engine,
        layout,
        "0",
        max_num_batched_tokens=8 * LAYOUTS[layout][1],
        num_blocks=500,
        switches={SPARE: "1"},
    )
    unit = bench.alignment
    prompt = random_prompt(1, 6 * unit)
    bench.hit(prompt)
    assert bench.hit(branch(prompt, 3 * unit, 1)) == 3 * unit
    number = 2
    while bench.is_cached(prompt, 2 * unit):
        bench.hit(random_prompt(number, 300))
        number += 1
        assert number < 60, "the spare tails are never given up"
    assert bench.hit(branch(prompt, 2 * unit, number)) == 0
    assert bench.hit(branch(prompt, 3 * unit, number + 1)) == 3 * unit


@pytest.mark.parametrize("layout", ["gemma", "dsv4-rows-partial"])
def test_spare_tails_are_thinned_to_ever_rounder_boundaries(
    layout: str, make_engine: MakeEngine
) -> None:
    """Before the first of every fourth boundary is lost, all others are, and so on."""
    bench = Bench(make_engine, layout, "0", switches={SPARE: "1"})
    last = 1000 // bench.alignment - 2
    spares = [n * bench.alignment for n in range(1, last)]
    prompt = random_prompt(1, last * bench.alignment + 1)
    bench.hit(prompt)
    unit = bench.engine.manager.coordinator.tails.spare_unit
    stages: set[int] = set()
    lost: list[int] = []
    for number in range(2, 200):
        bench.hit(random_prompt(number, last // 8 * bench.alignment))
        lost = [b for b in spares if not bench.is_cached(prompt, b)]
        for spacing in (4 * unit, 16 * unit, 64 * unit):
            if any(b % spacing == 0 for b in lost):
                stages.add(spacing)
                assert all(b in lost for b in spares if b % spacing), (number, spacing)
        if lost == spares:
            break
    assert stages == {unit * s for s in (4, 16, 64) if unit * s <= spares[-1]} and len(stages) > 1
    assert bench.is_cached(prompt, last * bench.alignment), "its replay boundary is kept"


@pytest.mark.parametrize("layout", FINE)
def test_the_end_of_a_prompt_goes_before_what_is_kept_shortly_before_it(
    layout: str, make_engine: MakeEngine
) -> None:
    """A tail takes memory of rows; one that makes hits a little longer has idle memory only."""
    bench = Bench(
        make_engine,
        layout,
        "auto",
        max_num_batched_tokens=8 * LAYOUTS[layout][1],
        num_blocks=500,
        switches={SPARE: "1"},
    )
    unit = bench.alignment
    prompt = random_prompt(1, 6 * unit + 1)
    bench.hit(prompt)
    number = 2
    while bench.is_cached(prompt, 6 * unit):
        bench.hit(random_prompt(number, 6 * unit + 1))
        number += 1
        assert number < 200, "its tail is never given up"
    assert bench.hit(prompt) == 4 * unit, "the fallback boundary"

    bench.fresh()
    bench.hit(prompt)
    assert bench.hit(prompt) == 6 * unit, "the replay boundary, kept from now on"
    for other in range(2, number):
        bench.hit(random_prompt(other, 6 * unit + 1))
    assert bench.hit(prompt) == 6 * unit


def ranks_of_rows(bench: Bench, prompt: list[int], start: int, end: int) -> set[Rank]:
    """Return the ranks of the blocks of rows from ``start`` on that a hit up to ``end`` takes."""
    coordinator, blocks = bench.engine.manager.coordinator, bench.blocks_of_hit(prompt, end)
    return {
        coordinator.block_pool.rank(block)
        for group in coordinator.groups.prefix
        for block in blocks[group.id][cdiv(start, group.block_tokens) :]
    }


@pytest.mark.parametrize("layout", FINE)
def test_rows_that_only_marginal_tails_need_go_with_them(
    layout: str, make_engine: MakeEngine
) -> None:
    bench = Bench(make_engine, layout, "auto", switches={SPARE: "1"})
    unit = bench.alignment
    prompt = random_prompt(1, 6 * unit + 1)
    bench.hit(prompt)
    assert ranks_of_rows(bench, prompt, 4 * unit, 6 * unit) == {Rank.MARGINAL}
    assert min(ranks_of_rows(bench, prompt, 0, 4 * unit)) >= Rank.ROLLING


@pytest.mark.parametrize("layout", FINE)
def test_rows_that_were_hit_stay_though_who_wrote_them_ends_later(
    layout: str, make_engine: MakeEngine
) -> None:
    bench = Bench(
        make_engine,
        layout,
        "auto",
        max_num_seqs=2,
        max_num_batched_tokens=8 * LAYOUTS[layout][1],
        num_blocks=500,
        switches={SPARE: "1"},
    )
    unit, engine = bench.alignment, bench.engine
    prompt = random_prompt(1, 6 * unit + 1)
    engine.add("first", prompt, max_tokens=12)
    for _ in range(3):
        engine.step()
    assert bench.hit(prompt) == 6 * unit
    assert "first" not in engine.alive, "both have ended, and the first one last"
    once, number = random_prompt(2, 6 * unit + 1), 3
    bench.hit(once)
    while bench.is_cached(once, 6 * unit):
        bench.hit(random_prompt(number, 6 * unit + 1))
        number += 1
        assert number < 200, "its tail is never given up"
    assert bench.hit(prompt) == 6 * unit


def test_rows_stay_on_which_a_much_longer_hit_rested(make_engine: MakeEngine) -> None:
    """A prompt that found no tail there has blocks of its own; hits take those that came first."""
    bench = Bench(make_engine, "gemma", "auto", max_num_seqs=2, switches={SPARE: "1"})
    unit, engine = bench.alignment, bench.engine
    prompt = random_prompt(1, 6 * unit + 1)
    longer = prompt[: 6 * unit] + random_prompt(2, 10 * unit + 1)
    engine.add("first", prompt, max_tokens=6)
    engine.step()
    bench.give_up_tails()
    engine.add("longer", longer, max_tokens=1)
    engine.step()
    assert engine.hits["longer"] == 4 * unit and engine.alive == ["first"]
    assert bench.hit(longer, max_tokens=1) == 16 * unit
    assert not engine.alive, "the first one has ended last"
    assert min(ranks_of_rows(bench, prompt, 0, 4 * unit)) >= Rank.ROLLING
    assert min(ranks_of_rows(bench, longer, 4 * unit, 16 * unit)) >= Rank.ROLLING


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "partial" in name])
def test_drafts_cost_one_granule(layout: str, make_engine: MakeEngine) -> None:
    """Not a compressed block."""
    plain = Bench(make_engine, layout, "0")
    drafting = Bench(make_engine, layout, "0", num_drafts=1)
    for length in range(2 * plain.alignment, 6 * plain.alignment, 7):
        prompt = random_prompt(length, length)
        for bench in (plain, drafting):
            bench.hit(prompt)
        assert plain.hit(prompt) - drafting.hit(prompt) in (0, plain.alignment), length
