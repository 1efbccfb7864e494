# SPDX-License-Identifier: Apache-2.0
"""Who is let in first where memory is short, on a real scheduler whose rows the oracle checks."""

from __future__ import annotations

import random
from unittest.mock import Mock

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from tests.e2e.core.configurations import ADMISSION, EVICTION, SPARE, Configuration
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.test_kept_boundaries import LAYOUTS, Bench, random_prompt
from vllm_ascend.core.admission import waiting_order
from vllm_ascend.core.policy.admission import FADING_TURNS

CACHED = {ADMISSION: "cached"}
LENGTH, LONG, SHORT, STEP = 320, 900, 70, 64


def make_bench(make_engine: MakeEngine, layout: str, *, is_on: bool = True, **options) -> Bench:
    switches = {SPARE: "1", EVICTION: "protect", **(CACHED if is_on else {})}
    return Bench(make_engine, layout, "0", switches=switches, **options)


def short_bench(make_engine: MakeEngine, layout: str, **options) -> Bench:
    """Return a bench with three seats, whose memory holds what runs and one more long prompt."""
    sizes = {"max_num_seqs": 3, "max_num_batched_tokens": STEP}
    coordinator = make_bench(make_engine, layout, **sizes).engine.manager.coordinator
    runs, cold = (waiting_order._most_blocks(coordinator, n) for n in (SHORT, LONG))
    return make_bench(make_engine, layout, num_blocks=runs + cold * 3 // 2, **sizes, **options)


def order_of_starts(engine: Engine) -> list[str]:
    """Step until all have ended; return who was let in, one after the other."""
    started: list[str] = []
    while engine.scheduler.has_requests():
        engine.step()
        started += [name for name in engine.hits if name not in started]
    return started


def add_cold_and_warm(bench: Bench) -> None:
    """Queue two prompts that nobody has sent behind one that runs, then two that go on."""
    for topic in (1, 2):
        bench.hit(random_prompt(topic, LENGTH))
    bench.engine.add("runs", random_prompt(3, 40), 30)
    bench.engine.step()
    for number in (1, 2):
        bench.engine.add(f"cold-{number}", random_prompt(10 + number, LONG), 2)
    for number in (1, 2):
        prompt = random_prompt(number, LENGTH) + random_prompt(20 + number, 8)
        bench.engine.add(f"warm-{number}", prompt, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cached_prompts_go_first_and_equal_ones_as_they_came(
    layout: str, make_engine: MakeEngine
) -> None:
    bench = short_bench(make_engine, layout)
    add_cold_and_warm(bench)
    started = order_of_starts(bench.engine)[-5:]
    assert started == ["runs", "warm-1", "warm-2", "cold-1", "cold-2"]
    bench.engine.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unset_they_go_as_they_came(layout: str, make_engine: MakeEngine) -> None:
    bench = short_bench(make_engine, layout, is_on=False)
    assert bench.engine.manager.coordinator.waiting_order is None
    add_cold_and_warm(bench)
    started = order_of_starts(bench.engine)[-5:]
    assert started == ["runs", "cold-1", "cold-2", "warm-1", "warm-2"]


@pytest.mark.parametrize("max_num_seqs", [2, 8])
def test_they_go_as_they_came_where_memory_is_not_short(
    max_num_seqs: int, make_engine: MakeEngine
) -> None:
    """Two seats let one in at a time, eight let all in."""
    bench = make_bench(make_engine, "dsv4-rows", max_num_seqs=max_num_seqs, num_blocks=6000)
    add_cold_and_warm(bench)
    started = order_of_starts(bench.engine)[-5:]
    assert started == ["runs", "cold-1", "cold-2", "warm-1", "warm-2"]


def test_few_seats_go_to_cached_ones_where_prompts_were_lost(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine, "dsv4-rows", max_num_seqs=2, num_blocks=6000)
    add_cold_and_warm(bench)
    lose_a_prompt(bench.engine.scheduler)
    started = order_of_starts(bench.engine)[-5:]
    assert started == ["runs", "warm-1", "warm-2", "cold-1", "cold-2"]


def test_they_go_as_they_came_again_when_memory_is_no_longer_short(
    make_engine: MakeEngine,
) -> None:
    bench = short_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    order = bench.engine.manager.coordinator.waiting_order
    order.put(bench.engine.scheduler)
    names = [request.request_id for request in bench.engine.scheduler.waiting]
    assert names == ["warm-1", "warm-2", "cold-1", "cold-2"]
    most_running = bench.engine.manager.coordinator.plan.terms.most_running
    setattr(bench.engine.scheduler, most_running, 2)  # one seat: whoever takes it fits
    bench.engine.add("last", random_prompt(1, LENGTH), 2)
    order.put(bench.engine.scheduler)
    names = [request.request_id for request in bench.engine.scheduler.waiting]
    assert names == ["cold-1", "cold-2", "warm-1", "warm-2", "last"]


def test_nothing_is_looked_up_while_nobody_can_be_let_in(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    monkeypatch.setattr(
        bench.engine.manager.coordinator.lookup, "find", lambda *_: pytest.fail("looked up")
    )
    for _ in range(10):
        bench.engine.step()
    assert len(bench.engine.scheduler.waiting) == 4


@pytest.mark.parametrize("most", [0, 1, 3])
def test_who_was_passed_often_enough_goes_first(make_engine: MakeEngine, most: int) -> None:
    bench = short_bench(make_engine, "dsv4-rows")
    bench.engine.manager.coordinator.waiting_order.most_passes = most
    bench.hit(random_prompt(1, LENGTH))
    bench.engine.add("runs", random_prompt(3, 40), 5)
    bench.engine.step()
    for number in (1, 2):
        bench.engine.add(f"cold-{number}", random_prompt(10 + number, LONG), 2)
    for number in range(6):
        prompt = random_prompt(1, LENGTH) + random_prompt(20 + number, 8)
        bench.engine.add(f"warm-{number}", prompt, 2)
    started = order_of_starts(bench.engine)[-8:]
    assert started.index("cold-1") == most
    assert started.index("cold-2") == most + 1


def test_preempted_requests_and_those_with_rows_elsewhere_keep_their_place(
    make_engine: MakeEngine,
) -> None:
    bench = make_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    scheduler = bench.engine.scheduler
    by_name = {request.request_id: request for request in scheduler.waiting}
    by_name["cold-1"].num_preemptions, by_name["cold-1"].status = 1, RequestStatus.PREEMPTED
    by_name["cold-2"].kv_transfer_params = {"do_remote_prefill": False}
    scheduler.finish_requests("runs", RequestStatus.FINISHED_ABORTED)
    scheduler.kv_cache_manager.coordinator.waiting_order.put(scheduler)
    names = [request.request_id for request in scheduler.waiting]
    assert names == ["cold-1", "cold-2", "warm-1", "warm-2"]


@pytest.mark.parametrize(
    ("handed", "moves"), [({"do_remote_decode": True}, True), ({"do_remote_prefill": True}, False)]
)
def test_prompts_of_a_prefill_instance_are_put_into_order_and_pulled_ones_are_not(
    handed: dict, make_engine: MakeEngine, *, moves: bool
) -> None:
    bench = short_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    scheduler = bench.engine.scheduler
    for request in scheduler.waiting:
        request.kv_transfer_params = handed
    scheduler.kv_cache_manager.coordinator.waiting_order.put(scheduler)
    names = [request.request_id for request in scheduler.waiting]
    came = ["cold-1", "cold-2", "warm-1", "warm-2"]
    assert names == ([*came[2:], *came[:2]] if moves else came)


@pytest.mark.parametrize("mode", ["plain", "async", "mtp1", "async-mtp"])
def test_nobody_starves_whatever_comes(mode: str, make_engine: MakeEngine) -> None:
    """Requests come in bursts and are aborted, and every step is checked."""
    cell = Configuration.named("dsv4-rows", mode, "admission")
    engine = make_engine(
        lambda: cell.layout, lambda: cell.options(2.0), cell.oracle(7), cell.environment
    )
    engine.manager.coordinator.waiting_order.most_passes = most = 2
    rng, passes, prompts = random.Random(5), {}, [random_prompt(n, 250) for n in range(4)]
    num_passes = 0
    for turn in range(1000):
        if rng.random() < 0.4 and len(engine.alive) < 30:
            for number in range(rng.randrange(1, 4)):
                prompt = prompts[rng.randrange(4)][: rng.randrange(20, 150)]
                own = random_prompt(1000 + 10 * turn + number, rng.randrange(1, 40))
                engine.add(f"{turn}-{number}", prompt + own, rng.randrange(1, 40))
        if rng.random() < 0.05 and engine.alive:
            engine.abort([rng.choice(engine.alive)])
        before = [r for r in by_arrival(engine) if r.status == RequestStatus.WAITING]
        engine.step()
        let_in = [place for place, r in enumerate(before) if r.request_id in engine.hits]
        for place, request in enumerate(before):
            if place not in let_in:
                later = sum(other > place for other in let_in)
                passes[request.request_id] = passes.get(request.request_id, 0) + later
                num_passes += later
        assert max(passes.values(), default=0) <= most
    assert max(passes.values()) == most, "nobody came near the bound, so this proves nothing"
    assert num_passes > 50, "the order changed nothing, so this proves nothing"
    engine.drain()


def by_arrival(engine: Engine) -> list:
    waiting = {id(request) for request in engine.scheduler.waiting}
    return [request for request in engine.scheduler.requests.values() if id(request) in waiting]


class _Balancing(AsyncScheduler):
    def schedule(self, *args, **kwargs):
        return super().schedule(*args, **kwargs)


@pytest.mark.parametrize(
    ("layout", "num_blocks"), [("dsv4-rows-partial", 600), ("dsv4-rows-sparse", 300)]
)
@pytest.mark.parametrize("is_on", [True, False])
def test_while_prompts_are_lost_those_that_run_leave_the_cache_its_share(
    layout: str, num_blocks: int, make_engine: MakeEngine, *, is_on: bool
) -> None:
    """Steps are small, so what is let in grows for long."""
    sizes = {"max_num_seqs": 20, "num_blocks": num_blocks, "max_num_batched_tokens": 64}
    engine = make_bench(make_engine, layout, is_on=is_on, **sizes).engine
    for number in range(96):
        engine.add(f"r{number}", random_prompt(number % 24, LENGTH), 40)
    coordinator, pool = engine.manager.coordinator, engine.manager.block_pool
    most_running, most_used, most_kept, started = 0, 0, 0, 0
    share = coordinator.waiting_order.share if is_on else None
    while engine.scheduler.has_requests():
        engine.step()
        running, before, started = len(engine.scheduler.running), started, len(engine.hits)
        if running > 1 and started > before and coordinator.stats.lost_prompts:
            most_running = max(most_running, running)
            used = pool.num_gpu_blocks - pool.get_num_free_blocks()
            most_used = max(most_used, used)
            if share is not None:
                most_kept = max(most_kept, share.blocks_kept())  # nobody is about to be let in
                assert used + share.blocks_kept() <= num_blocks
    assert most_running > 1, "nobody was let in beside others, so this proves nothing"
    assert most_used > num_blocks // 2 or is_on
    assert (most_kept > num_blocks // 3) == is_on
    stats = coordinator.stats
    assert bool(stats.held_steps) == is_on
    assert bool(stats.reserved_blocks) == bool(share and share.is_in_force)
    engine.check()


def test_where_nothing_is_lost_as_many_run_as_fit(make_engine: MakeEngine) -> None:
    engines = {}
    for is_on in (True, False):
        sizes = {"max_num_seqs": 20, "num_blocks": 600, "max_num_batched_tokens": 64}
        bench = make_bench(make_engine, "dsv4-rows-partial", is_on=is_on, **sizes)
        for number in range(24):
            bench.engine.add(f"r{number}", random_prompt(number, LENGTH), 40)
        running = []
        while bench.engine.scheduler.has_requests():
            bench.engine.step()
            running.append(len(bench.engine.scheduler.running))
        engines[is_on] = running
        stats = bench.engine.manager.coordinator.stats
        assert (stats.lost_prompts, stats.held_steps, stats.reserved_blocks) == (0, 0, 0)
    assert engines[True] == engines[False]


def lose_a_prompt(scheduler) -> None:
    coordinator = scheduler.kv_cache_manager.coordinator
    coordinator.stats.lost_prompts += 1
    coordinator.waiting_order.share.step_starts(scheduler.running)


def test_who_was_preempted_is_not_held_back(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    scheduler = bench.engine.scheduler
    share = scheduler.kv_cache_manager.coordinator.waiting_order.share
    by_name = {request.request_id: request for request in scheduler.waiting}
    by_name["cold-1"].num_preemptions, by_name["cold-1"].status = 1, RequestStatus.PREEMPTED
    lose_a_prompt(scheduler)
    assert share.blocks_to_leave("cold-1", 1) == 0
    assert share.blocks_to_leave("cold-2", 1) >= bench.engine.manager.block_pool.num_gpu_blocks // 2
    share.step_starts([])
    assert share.blocks_to_leave("cold-2", 1) == 0


def test_the_caches_share_falls_after_a_loss_until_the_next(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    scheduler, pool = bench.engine.scheduler, bench.engine.manager.block_pool
    share = scheduler.kv_cache_manager.coordinator.waiting_order.share
    share.step_starts(scheduler.running)
    assert not share.is_in_force
    lose_a_prompt(scheduler)
    handed_out, num_blocks = pool.free_block_queue.num_handed_out, pool.num_gpu_blocks
    half = share.blocks_kept()
    assert half == num_blocks - num_blocks // 2
    handed_out[0] += FADING_TURNS * num_blocks // 2
    share.step_starts(scheduler.running)
    assert share.blocks_kept() == half // 2
    lose_a_prompt(scheduler)
    assert share.blocks_kept() == half
    handed_out[0] += FADING_TURNS * num_blocks
    share.step_starts(scheduler.running)
    assert not share.is_in_force
    assert share.blocks_to_leave("cold-2", 1) == 0


@pytest.mark.parametrize("kind", [Scheduler, AsyncScheduler, _Balancing])
def test_who_schedules_itself_is_left_alone(kind: type[Scheduler]) -> None:
    scheduler = kind.__new__(kind)
    scheduler.policy, scheduler.requests = SchedulingPolicy.FCFS, {}
    scheduler.kv_cache_manager = Mock()
    scheduler.kv_cache_manager.coordinator.groups.all = ()
    order = waiting_order.waiting_order_for(scheduler)
    assert (order is None) == (kind is _Balancing)


def test_nothing_is_remembered_of_those_that_are_gone(make_engine: MakeEngine) -> None:
    bench = make_bench(make_engine, "dsv4-rows")
    add_cold_and_warm(bench)
    bench.engine.run()
    bench.hit(random_prompt(30, 40))
    assert not bench.engine.manager.coordinator.waiting_order._places


def test_priorities_are_left_alone(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(waiting_order._logger, "info", lambda text, *a: lines.append(text % a))
    cell = Configuration.named("dsv4-rows", "priority", "admission")
    engine = make_engine(lambda: cell.layout, lambda: cell.options(2.0), None, cell.environment)
    assert engine.manager.coordinator.waiting_order is None
    # The sizes are found with a scheduler of its own.
    (line,) = {line for line in lines if ADMISSION in line}
    assert "--scheduling-policy priority" in line
