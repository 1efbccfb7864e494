# SPDX-License-Identifier: Apache-2.0
"""The learned order on a real scheduler: exact, and it keeps prompts that come again."""

from __future__ import annotations

import pytest

from tests.e2e.core.configurations import EVICTION, PROTECT, SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import LAYOUTS, Bench, random_prompt
from vllm_ascend.core.eviction.block_classes import BlockClass
from vllm_ascend.core.pool.free_queue import Rank

SHARED, OWN = 192, 8


def make_bench(make_engine: MakeEngine, layout: str, **switches: str) -> Bench:
    switches = {SPARE: "1", EVICTION: "learned", **switches}
    options = {"num_blocks": 800, "max_num_batched_tokens": 64}
    return Bench(make_engine, layout, "0", switches=switches, **options)


def ask(bench: Bench, turn: int) -> int:
    return bench.hit(random_prompt(1, SHARED) + random_prompt(100 + turn, OWN))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prefix_that_comes_again_outlives_new_prompts(
    layout: str, make_engine: MakeEngine
) -> None:
    """Every row that is read is checked on the way; a reset starts it anew."""
    bench = make_bench(make_engine, layout)
    learned = bench.engine.manager.coordinator.caching.learned
    assert learned.rule.name == "lru"
    for turn in range(40):
        hit = ask(bench, turn)
        bench.hit(random_prompt(10_000 + turn, 300))
    assert learned.rule.name != "lru"
    for number in range(20):
        bench.hit(random_prompt(20_000 + number, 300))
    assert ask(bench, 99) == hit > SHARED // 2
    bench.engine.check()
    bench.fresh()
    assert ask(bench, 100) == 0


def test_until_something_is_learned_returning_prompts_are_protected_if_asked_for(
    make_engine: MakeEngine,
) -> None:
    bench = make_bench(make_engine, "gemma", **{PROTECT: "1"})
    assert bench.engine.manager.coordinator.caching.learned.rule.name == "protect"


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name.endswith("partial")])
def test_a_block_is_worth_what_most_of_it_is(layout: str, make_engine: MakeEngine) -> None:
    """All prompts begin alike: the blocks in which their own tokens follow wait with these."""
    bench = make_bench(make_engine, layout)
    shared, pool = bench.alignment, bench.engine.manager.block_pool
    for number in range(4):
        bench.hit(random_prompt(1, shared) + random_prompt(100 + number, 4 * shared))
    own = [block_id for block_id, (_, known) in pool.granules.known.items() if len(known) > 2]
    assert own and {pool.kept_order.queue_of[block_id] for block_id in own} == {BlockClass.NEW}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_was_given_up_and_comes_again_waits_as_one(
    layout: str, make_engine: MakeEngine
) -> None:
    """The start of it, that came before, could not be hit without the tails at its end."""
    bench = make_bench(make_engine, layout)
    prompt = random_prompt(1, SHARED)
    bench.hit(prompt)
    pool = bench.engine.manager.block_pool
    for block in pool.free_block_queue.get_all_free_blocks():
        pool.give_up(block)
    own = random_prompt(2, SHARED // 8)
    assert bench.hit(prompt + own) == 0
    queue_of, queue = pool.kept_order.queue_of, pool.free_block_queue.tier(Rank.KEPT)
    waiting = {block.block_id for block in queue.get_all_free_blocks()}
    returning = {block_id for block_id in waiting if queue_of[block_id] == BlockClass.RETURNING}
    hit = bench.hit(prompt + own)
    assert hit >= SHARED and returning
    # Nothing of it waits elsewhere: with the others gone it is hit as before.
    for block in queue.get_all_free_blocks():
        if block.block_id not in returning:
            pool.give_up(block)
    assert bench.hit(prompt + own) == hit
