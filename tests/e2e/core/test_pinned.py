# SPDX-License-Identifier: Apache-2.0
"""The pinned tier on a real scheduler: what is pinned, for how long, and that nobody waits for it.

Sizes (gemma): blocks of 4 tokens, windows of 9, so a tail is two blocks in each of three groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import MIN_DROP, PIN, SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.test_kept_boundaries import LAYOUTS, Bench, random_prompt
from vllm_ascend.core.policy.ranks import Rank
from vllm_ascend.core.pool import tiered_block_pool
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool
from vllm_ascend.core.retention.tail_cache import TailCache
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend_evaluation.oracle import IntegrityError

PINNING = {PIN: "1", MIN_DROP: "2"}
CHUNK = 24
TAIL_BLOCKS = 6  # of a boundary, in all groups


def make_bench(
    make_engine: MakeEngine,
    switches: Mapping[str, str] = PINNING,
    retention: str | None = None,
    **options,
) -> Bench:
    options = {"max_num_batched_tokens": CHUNK, **options}
    return Bench(make_engine, "gemma", retention, switches=switches, **options)


def pinned_ids(bench: Bench) -> list[int]:
    queue = bench.engine.manager.block_pool.free_block_queue
    return [block.block_id for block in queue.tier(Rank.PINNED).get_all_free_blocks()]


def hits_in_turn(bench: Bench, num_prefixes: int, num_rounds: int) -> list[set[int]]:
    """Ask for prefixes of 96 tokens in turn, each time with 8 others behind; hits by round."""
    return [
        {
            bench.hit(random_prompt(number, 96) + random_prompt(1000 * turn + number, 8))
            for number in range(num_prefixes)
        }
        for turn in range(1, num_rounds + 1)
    ]


@pytest.mark.parametrize("retention", [None, "0", "48"])
def test_hits_stay_where_caching_everything_loses_them(
    retention: str | None, make_engine: MakeEngine
) -> None:
    """Eight prefixes fit without most of their windows, but not with all of them."""
    dense = make_bench(make_engine, {}, "4", num_blocks=500)
    assert hits_in_turn(dense, 8, 3) == [{0}, {0}, {0}]
    pinned = make_bench(make_engine, retention=retention, num_blocks=500)
    assert hits_in_turn(pinned, 8, 3) == [{0}, {96}, {96}]


def test_few_prefixes_are_hit_as_if_everything_was_cached(make_engine: MakeEngine) -> None:
    for switches, retention in (({}, "4"), (PINNING, None)):
        bench = make_bench(make_engine, switches, retention, num_blocks=1500)
        assert hits_in_turn(bench, 8, 2) == [{0}, {96}]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_window_per_chunk_and_none_per_decode(layout: str, make_engine: MakeEngine) -> None:
    """A prompt of four chunks leaves three windows behind; a long answer leaves none."""
    unit = LAYOUTS[layout][1]
    for answer in (1, 200):
        bench = Bench(
            make_engine,
            layout,
            "0",
            max_num_batched_tokens=2 * unit if unit > 8 else 32,
            switches={PIN: "1", MIN_DROP: "4"},
        )
        chunk = bench.engine.scheduler.max_num_scheduled_tokens
        prompt = random_prompt(7, 4 * chunk)
        bench.hit(prompt, max_tokens=answer)
        pool = bench.engine.manager.block_pool
        ids = set(pinned_ids(bench))
        assert ids
        pool.get_new_blocks(pool.get_num_free_blocks() - len(ids))
        left = {b.block_id for b in pool.blocks if b.block_hash is not None}
        assert left == ids, "what is not pinned was given up, what is pinned was not"
        tails = {
            block_id
            for tail_end in (chunk, 2 * chunk, 3 * chunk)
            for block_id in tail_ids(bench, prompt, tail_end)
        }
        assert ids == tails


def tail_ids(bench: Bench, prompt: list[int], boundary: int) -> Iterator[int]:
    """The blocks that are cached for a boundary, in all groups that forget."""
    from vllm_ascend.core.layout.block_names import BlockNames
    from vllm_ascend.dry_run.scheduler import make_request

    manager = bench.engine.manager
    request = make_request(bench.engine.scheduler, "probe", prompt, 1)
    for group in manager.coordinator.groups.windowed:
        names = BlockNames(
            request.block_hashes, manager.block_pool.hash_block_size, group.block_tokens
        )
        for ordinal in group.tail(boundary):
            (block,) = manager.block_pool.get_cached_block(names[ordinal], [group.id])
            yield block.block_id


def test_pinned_blocks_are_taken_last_and_the_oldest_first(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine)
    old, new = random_prompt(1, 2 * CHUNK), random_prompt(2, 2 * CHUNK)
    bench.hit(old)
    bench.hit(new)
    ids = pinned_ids(bench)
    assert set(ids[:TAIL_BLOCKS]) == set(tail_ids(bench, old, CHUNK))
    assert set(ids[TAIL_BLOCKS:]) == set(tail_ids(bench, new, CHUNK))
    pool = bench.engine.manager.block_pool
    taken = pool.get_new_blocks(pool.get_num_free_blocks())
    assert [block.block_id for block in taken[-len(ids) :]] == ids


def test_a_hit_makes_a_pinned_window_the_youngest(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine)
    old, new = random_prompt(1, 2 * CHUNK), random_prompt(2, 2 * CHUNK)
    bench.hit(old)
    bench.hit(new)
    before = pinned_ids(bench)
    assert bench.hit(old[:CHUNK] + random_prompt(3, 2)) == CHUNK
    assert pinned_ids(bench) == before[TAIL_BLOCKS:] + before[:TAIL_BLOCKS]


def test_demoted_blocks_stay_cached_until_their_turn(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine)
    prompt = random_prompt(1, 2 * CHUNK)
    bench.hit(prompt)
    bench.hit(random_prompt(2, 2 * CHUNK))
    pool = bench.engine.manager.block_pool
    assert pool.demote_n(TAIL_BLOCKS) == TAIL_BLOCKS
    bench.engine.check()
    assert len(pinned_ids(bench)) == TAIL_BLOCKS
    assert bench.is_cached(prompt, CHUNK)
    assert pool.demote_n(1000) == TAIL_BLOCKS
    assert pool.demote_n(1) == 0
    bench.engine.check()
    assert bench.hit(prompt[:CHUNK] + random_prompt(3, 2)) == CHUNK


def test_nobody_waits_for_memory_that_pins_hold(make_engine: MakeEngine) -> None:
    """A pool that holds one long request and nothing else, with every window pinned."""
    bench = make_bench(make_engine, {PIN: "1", MIN_DROP: "1"}, num_blocks=140)
    for seed in range(6):
        bench.hit(random_prompt(seed, 200), max_tokens=100)
        assert pinned_ids(bench)
    pool = bench.engine.manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
    assert bench.engine.num_preemptions == 0


def test_spare_tails_make_no_difference_to_what_is_pinned(make_engine: MakeEngine) -> None:
    prompt = random_prompt(1, 4 * CHUNK)
    numbers = []
    for switches, retention in ((PINNING, None), (PINNING, "0"), ({**PINNING, SPARE: "1"}, "0")):
        bench = make_bench(make_engine, switches, retention)
        bench.hit(prompt)
        numbers.append(len(pinned_ids(bench)))
    assert numbers == [3 * TAIL_BLOCKS] * 3


def test_a_model_without_windows_is_refused(
    switch: Callable[[Mapping[str, str]], None],
) -> None:
    switch({PIN: "1"})
    with pytest.raises(ValueError, match="VLLM_PIN_SWA_TOKENS='1' has no effect on this model"):
        Engine(layouts.full_only(), SchedulerOptions(num_blocks=100, max_model_len=100))


def free_pinned_blocks_as_others(patch: pytest.MonkeyPatch) -> None:
    """Pins are noted, but make no difference to the order."""
    patch.setattr(tiered_block_pool, "shares_tier", lambda one, other: True)
    free_blocks = AscendBlockPool.free_blocks

    def free_without_pins(self, *args, **kwargs) -> None:
        self._ranks = self._ranks.replace(bytes([Rank.PINNED]), bytes([Rank.KEPT]))
        free_blocks(self, *args, **kwargs)

    patch.setattr(AscendBlockPool, "free_blocks", free_without_pins)


def pin_the_youngest_tail_too_early(patch: pytest.MonkeyPatch) -> None:
    """Pin no tail but the one that a hit rests on."""
    patch.setattr(TailCache, "_pin_window_left", lambda *args: None)


@pytest.mark.parametrize("plant", [free_pinned_blocks_as_others, pin_the_youngest_tail_too_early])
def test_a_lost_pin_is_noticed(
    plant: Callable, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    bench = make_bench(make_engine, retention="0")
    bench.hit(random_prompt(1, 4 * CHUNK))
    assert not pinned_ids(bench)


def test_a_rank_that_outlives_its_pin_is_noticed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(make_engine)
    bench.hit(random_prompt(1, 4 * CHUNK))
    monkeypatch.setattr(
        AscendBlockPool, "demote_n", lambda self, n: self.free_block_queue.demote_n(n)
    )
    bench.engine.manager.block_pool.demote_n(1)
    with pytest.raises(IntegrityError, match="is pinned, but among the cached ones"):
        bench.engine.check()
