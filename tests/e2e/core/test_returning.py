# SPDX-License-Identifier: Apache-2.0
"""Prompts that come again outlive a flood of prompts that do not, on a real scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.e2e.core.configurations import EVICTION, SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_kept_boundaries import LAYOUTS, Bench, random_prompt
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.core.retention.returning_prompts import ReturningPrompts
from vllm_ascend.releases import running_release

SHARED, OWN = 192, 8
NUM_BLOCKS = 800


def make_bench(make_engine: MakeEngine, layout: str, protects: bool, **options) -> Bench:
    switches = {SPARE: "1", EVICTION: "protect" if protects else "lru"}
    options = {"num_blocks": NUM_BLOCKS, "max_num_batched_tokens": 64, **options}
    return Bench(make_engine, layout, "0", switches=switches, **options)


def ask(bench: Bench, turn: int, topic: int = 1) -> int:
    """Ask something about a shared prefix; return the hit."""
    return bench.hit(random_prompt(topic, SHARED) + random_prompt(100 * topic + turn, OWN))


def flood(bench: Bench, seed: int = 0, num_prompts: int = 20, repeats: int = 1) -> None:
    """Send prompts that nobody has ever sent."""
    for number in range(num_prompts):
        for _ in range(repeats):
            bench.hit(random_prompt(10_000 + 100 * seed + number, 300))


def tier(bench: Bench, which: Rank) -> list[int]:
    queue = bench.engine.manager.block_pool.free_block_queue
    return [block.block_id for block in queue.tier(which).get_all_free_blocks()]


def flood_until_lost(bench: Bench, boundary: int) -> int:
    """Return how many prompts of a flood push out a prefix that is hit up to ``boundary``."""
    for number in range(200):
        if not bench.is_cached(random_prompt(1, SHARED), boundary):
            return number
        flood(bench, number, num_prompts=1)
    raise AssertionError("nothing is ever given up")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prefix_that_came_again_outlives_a_flood(layout: str, make_engine: MakeEngine) -> None:
    plain, protecting = (make_bench(make_engine, layout, protects) for protects in (False, True))
    for bench in (plain, protecting):
        ask(bench, 1)
        hit = ask(bench, 2)
    assert hit > SHARED // 2
    num_prompts = flood_until_lost(plain, hit)
    flood(protecting, num_prompts=3 * num_prompts)
    assert ask(protecting, 3) == hit


@pytest.mark.parametrize("layout", LAYOUTS)
def test_however_long_a_flood_is_it_protects_nothing_of_its_own(
    layout: str, make_engine: MakeEngine
) -> None:
    bench = make_bench(make_engine, layout, True)
    for seed in range(3):
        flood(bench, seed)
        assert tier(bench, Rank.PROTECTED) == []
        assert bench.engine.manager.coordinator.returning is not None


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_repeats_himself_gets_half_of_the_free_memory_at_most(
    layout: str, make_engine: MakeEngine
) -> None:
    """And what is new still has the other half to itself."""
    bench = make_bench(make_engine, layout, True)
    flood(bench, repeats=2)
    pool = bench.engine.manager.block_pool
    num_protected = len(tier(bench, Rank.PROTECTED))
    assert 0 < 2 * num_protected <= pool.get_num_free_blocks()
    assert ask(bench, 1) == 0
    assert ask(bench, 2) > SHARED // 2


def test_a_prompt_that_was_given_up_is_remembered(make_engine: MakeEngine) -> None:
    """It hits nothing when it comes again, and outlives others from then on."""
    bench = make_bench(make_engine, "gemma", True)
    ask(bench, 1)
    flood(bench, num_prompts=12)
    assert ask(bench, 1) == 0
    flood(bench, seed=1)
    assert ask(bench, 1) > SHARED // 2
    bench.fresh()
    assert ask(bench, 1) == 0
    assert tier(bench, Rank.PROTECTED) == [], "a reset forgets the names as well"


def test_a_prompt_that_shares_its_smaller_half_is_like_others(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine, "gemma", True)
    system = random_prompt(1, 64)
    for number in range(4):
        bench.hit(system + random_prompt(number, 80))
    assert tier(bench, Rank.PROTECTED) == []


def test_the_next_turn_of_a_conversation_is_protected_with_its_answers(
    make_engine: MakeEngine,
) -> None:
    bench = make_bench(make_engine, "gemma", True)
    prompt = random_prompt(1, 80)
    for turn in range(3):
        bench.hit(prompt, max_tokens=12)
        prompt = [*prompt, *bench.engine.outputs[f"r{bench.count}"], *random_prompt(turn, 12)]
    flood(bench)
    told = prompt[:-12]
    assert bench.hit(prompt) == (len(told) - 1) // 4 * 4


def test_preempted_requests_do_not_return(make_engine: MakeEngine) -> None:
    """Who is preempted finds what he himself has left; that is no second time."""
    bench = make_bench(make_engine, "gemma", True, num_blocks=150)
    engine = bench.engine
    for limit in {"max_num_running_reqs", running_release().most_running}:
        setattr(engine.scheduler, limit, 4)
    for number in range(4):
        engine.add(f"busy{number}", random_prompt(number, 60), 120)
    engine.run()
    engine.check()
    assert engine.num_preemptions, "the pool is too small for all of them"
    assert tier(bench, Rank.PROTECTED) == []


def num_protected(make_engine: MakeEngine, layout: str, *, is_preempted: bool) -> int:
    """Return the blocks that are protected once a prompt has come twice."""
    bench = make_bench(make_engine, layout, True, max_num_batched_tokens=32)
    ask(bench, 1)
    engine = bench.engine
    engine.add("again", random_prompt(1, SHARED) + random_prompt(102, SHARED // 3), 4)
    engine.step()
    if is_preempted:
        scheduler, request = engine.scheduler, engine.scheduler.running.pop()
        scheduler._preempt_request(request, time.monotonic())
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
    engine.run()
    assert engine.requests["again"].num_preemptions == is_preempted
    return len(tier(bench, Rank.PROTECTED))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_returns_although_it_is_preempted(layout, make_engine, monkeypatch) -> None:
    undisturbed = num_protected(make_engine, layout, is_preempted=False)
    preempted = num_protected(make_engine, layout, is_preempted=True)
    assert preempted >= undisturbed > 0
    monkeypatch.setattr(RankedCaching, "resume", lambda self, request_id, rank: None)
    assert num_protected(make_engine, layout, is_preempted=True) < preempted, "this proves nothing"


def protect_nothing(patch: pytest.MonkeyPatch) -> None:
    """Returning prompts are told, but their blocks are freed like others."""
    patch.setattr(AscendBlockPool, "protect", lambda self, blocks: None)


def forget_what_was_lent(patch: pytest.MonkeyPatch) -> None:
    """Protect the rows of a hit, but not the tails that it rests on."""
    set_rank = AscendBlockPool.set_rank

    def keep(self, block, rank) -> None:
        set_rank(self, block, min(rank, Rank.KEPT))

    patch.setattr(AscendBlockPool, "set_rank", keep)


def take_everybody_for_returning(patch: pytest.MonkeyPatch) -> None:
    """Then it is plain LRU again."""
    patch.setattr(ReturningPrompts, "includes", lambda *args: True)


@pytest.mark.parametrize(
    "plant", [protect_nothing, forget_what_was_lent, take_everybody_for_returning]
)
def test_a_prefix_that_is_not_protected_is_noticed(
    plant: Callable, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    bench = make_bench(make_engine, "gemma", True)
    ask(bench, 1)
    ask(bench, 2)
    flood(bench)
    assert ask(bench, 3) == 0


def test_it_works_alone_and_without_retention(make_engine: MakeEngine) -> None:
    """Where every tail is kept, too: what is new is given up first."""
    bench = Bench(make_engine, "gemma", None, num_blocks=NUM_BLOCKS, switches={EVICTION: "protect"})
    ask(bench, 1)
    warm = ask(bench, 2)
    flood(bench)
    assert ask(bench, 3) == warm == SHARED
