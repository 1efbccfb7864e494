# SPDX-License-Identifier: Apache-2.0
"""Streaming sessions: the token that a session drops leaves no trace under a wrong name."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PROFILE, RETENTION
from tests.e2e.core.conftest import MakeEngine, skip_if_left_to_vllm
from tests.e2e.core.engine import Engine
from tests.release_marks import WHERE_SESSIONS_MAY_BE_IN_NO_QUEUE
from vllm_ascend.core import scheduler as caching_scheduler
from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.core.pool.successors import SuccessorHashes
from vllm_ascend.core.retention.request_record import RequestRecord
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend_evaluation.oracle import ContentViolation

BEST = {DSV4: "1", PROFILE: "best"}
UNSET = {DSV4: "1"}
# Name -> layout, switches, drafts.
CELLS = {
    "gemma": (lambda: layouts.gemma_like(4, 9), {RETENTION: "0", PROFILE: "best"}, 0),
    "gemma-drafts": (lambda: layouts.gemma_like(4, 9), {RETENTION: "0"}, 2),
    "rows": (layouts.dsv4_rows_tiny, BEST, 0),
    "rows-unset": (layouts.dsv4_rows_tiny, UNSET, 0),
    "rows-drafts": (lambda: layouts.dsv4_rows_tiny(mtp=True), BEST, 1),
    "rows-drafts-unset": (lambda: layouts.dsv4_rows_tiny(mtp=True), UNSET, 3),
}


def make(make_engine: MakeEngine, cell: str, *, is_async: bool = False) -> Engine:
    layout, switches, drafts = CELLS[cell]
    options = SchedulerOptions(
        num_blocks=900,
        max_num_batched_tokens=64,
        max_model_len=600,
        num_speculative_tokens=drafts,
        async_scheduling=is_async,
    )
    engine = make_engine(layout, options, environment=switches)
    skip_if_left_to_vllm(engine)
    return engine


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(50) for _ in range(count)]


def drop_and_ask(engine: Engine, num_tokens: int, seed: int) -> None:
    """Let a session drop a token; then ask with it, and with what the session went on with."""
    rng, name = random.Random(seed), f"session-{seed}-{num_tokens}"
    first, second = tokens(rng, num_tokens), tokens(rng, 70)
    engine.say(name, first)
    engine.run()
    (dropped,) = engine.outputs[name][:1]
    engine.say(name, second)
    engine.run()
    engine.say(name, [])
    engine.run()
    engine.add(f"{name}-dropped", [*first, dropped, *second], 2)
    engine.run()
    engine.add(f"{name}-kept", [*first, *second, *tokens(rng, 5)], 2)
    engine.run()
    engine.check()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_nobody_hits_rows_under_the_name_of_a_dropped_token(cell, is_async, make_engine):
    """At every place in a granule and in a block."""
    engine = make(make_engine, cell, is_async=is_async)
    for number, num_tokens in enumerate(range(40, 75)):
        drop_and_ask(engine, num_tokens, number)
    assert any(engine.hits[name] > 32 for name in engine.hits if name.endswith("-kept"))
    engine.drain()


def test_a_session_that_grows_is_hit_for_all_its_turns(make_engine: MakeEngine) -> None:
    engine = make(make_engine, "rows")
    rng, said = random.Random(1), []
    for _ in range(5):
        said += (turn := tokens(rng, 50))
        engine.say("session", turn)
        engine.run()
    engine.say("session", [])
    engine.run()
    engine.add("again", [*said, 1, 2, 3], 1)
    engine.run()
    assert engine.hits["again"] >= 240


def preempt_as_the_turn_ends(make_engine: MakeEngine) -> Engine:
    """Preempt a session with more input while the last step of its turn is in flight."""
    engine = make(make_engine, "rows", is_async=True)
    rng = random.Random(2)
    engine.say("session", tokens(rng, 40))
    engine.say("session", tokens(rng, 30))
    engine.step()

    def preempt(_: SchedulerOutput) -> None:
        if engine.scheduler.running:
            session = engine.scheduler.running.pop()
            engine.scheduler._preempt_request(session, 0.0)

    engine.step(preempt)
    engine.run()
    return engine


def test_a_session_that_is_preempted_as_its_turn_ends_goes_on(make_engine: MakeEngine) -> None:
    engine = preempt_as_the_turn_ends(make_engine)
    assert len(engine.outputs["session"]) == 2


@WHERE_SESSIONS_MAY_BE_IN_NO_QUEUE
def test_without_our_cure_it_is_in_no_queue(make_engine: MakeEngine, monkeypatch) -> None:
    monkeypatch.setattr(caching_scheduler, "_let_wait", lambda *args: None)
    engine = preempt_as_the_turn_ends(make_engine)
    assert len(engine.outputs["session"]) == 1


def keep_hashes(patch: pytest.MonkeyPatch) -> None:
    """Leave the hash of the dropped token in place, as vLLM does."""
    session_continues = AscendHybridKVCacheCoordinator.session_continues

    @contextmanager
    def keep(self, session, *, has_new_items):
        hashes = list(session.block_hashes)
        with session_continues(self, session, has_new_items=has_new_items):
            session.block_hashes[:] = hashes
            yield

    patch.setattr(AscendHybridKVCacheCoordinator, "session_continues", keep)


def keep_successors(patch: pytest.MonkeyPatch) -> None:
    """Tell of a draft block what the session went on with, not what its row was computed from."""
    patch.setattr(SuccessorHashes, "drop_from", lambda *args: None)
    enter_stale_rows(patch)


def enter_stale_rows(patch: pytest.MonkeyPatch) -> None:
    """Enter draft rows that were computed from the dropped token."""
    patch.setattr(RequestRecord, "end_before_stale", lambda *args: 1 << 62)
    session_continues = AscendHybridKVCacheCoordinator.session_continues

    @contextmanager
    def forget(self, session, *, has_new_items):
        with session_continues(self, session, has_new_items=has_new_items):
            self.ledger.record(session.request_id).stale_tokens.clear()
            yield

    patch.setattr(AscendHybridKVCacheCoordinator, "session_continues", forget)


@pytest.mark.parametrize(
    ("plant", "cells"),
    [
        (keep_hashes, ["gemma", "rows", "rows-unset"]),
        (keep_successors, ["gemma-drafts", "rows-drafts", "rows-drafts-unset"]),
        (enter_stale_rows, ["gemma-drafts", "rows-drafts", "rows-drafts-unset"]),
    ],
)
def test_what_a_session_leaves_behind_is_noticed(plant, cells, make_engine, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(ContentViolation):
        for cell in cells:
            engine = make(make_engine, cell)
            for number, num_tokens in enumerate(range(40, 75)):
                drop_and_ask(engine, num_tokens, number)
