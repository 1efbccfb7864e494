# SPDX-License-Identifier: Apache-2.0
"""Blocks of running requests turn out not to have been loaded, in an engine of several groups."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from tests.e2e.core.configurations import Configuration
from tests.e2e.core.engine import Engine
from vllm_ascend.core.connectors.failed_loads import BlockTables
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend_evaluation.oracle.guard import NULL_BLOCK_ID


def build(mode: str, switch, shared_tokens: int = 100) -> Engine:
    cell = Configuration.named("dsv4-rows", mode, "best")
    switch(cell.environment)
    engine = Engine(cell.layout, cell.options(4.0), cell.oracle(0))
    rng = random.Random(0)
    prefix = [rng.randrange(50) for _ in range(shared_tokens)]
    for name in ("a", "b", "c"):
        own = [rng.randrange(50) for _ in range(140 - shared_tokens)]
        engine.add(name, [*prefix, *own], 6)
    return engine


def last_blocks(tables: BlockTables) -> set[int]:
    return {table[-1] for table in tables if table and table[-1]}


def whole_tables(tables: BlockTables) -> set[int]:
    """vllm-ascend's layerwise Mooncake connector reports these, null blocks and all."""
    return {block_id for table in tables for block_id in table}


def report_invalid(
    engine: Engine,
    name: str,
    turn: int,
    choose: Callable[[BlockTables], set[int]] = last_blocks,
) -> list[set[int]]:
    """Let the worker report some of a request's blocks after a turn; return what it reports."""
    engine.manager.coordinator.ledger.has_connector = True  # nobody else reports lost blocks
    reported: list[set[int]] = []
    execute = engine.worker.execute
    turns = iter(range(1000))

    def report(output):
        result = execute(output)
        if next(turns) == turn:
            blocks = choose(engine.manager.get_block_ids(name))
            reported.append(blocks)
            if not engine._is_async:  # there the next step has been dispatched with it
                forget_sampled(engine, name, result)
            result.kv_connector_output = KVConnectorOutput(invalid_block_ids=blocks)
        return result

    engine.worker.execute = report  # type: ignore[method-assign]
    return reported


def forget_sampled(engine: Engine, name: str, result) -> None:
    """vLLM's runners drop what a failed step sampled once they are told of fewer tokens."""
    sampled = result.sampled_token_ids[result.req_id_to_index[name]]
    digests = engine.worker._requests[name].digests
    digests.truncate(len(digests) - len(sampled))


@pytest.mark.parametrize("mode", ["plain", "async"])
@pytest.mark.parametrize("turn", [0, 1, 2, 4, 6])
def test_a_running_request_starts_anew(switch, mode, turn):
    untouched = build(mode, switch)
    untouched.run()
    engine = build(mode, switch)
    reported = report_invalid(engine, "a", turn)
    engine.run()
    assert reported[0]
    assert engine.outputs == untouched.outputs
    engine.drain()


def test_nothing_behind_an_invalid_block_is_hit(switch):
    engine = build("plain", switch)
    while engine.requests["a"].num_computed_tokens < 100:
        engine.step()
    tables = engine.manager.get_block_ids("a")
    first = {table[0] for table in tables if table[0]}
    assert engine.scheduler._handle_invalid_blocks(first, {}) >= {"a"}
    assert engine.requests["a"].status == RequestStatus.PREEMPTED
    blocks = engine.manager.block_pool.blocks
    assert all(blocks[block].block_hash is None for table in tables for block in table)
    engine.drain()


def test_the_policy_fail_names_the_requests(switch):
    engine = build("plain", switch)
    engine.scheduler.recompute_kv_load_failures = False
    report_invalid(engine, "a", turn=1)
    engine.run()
    assert engine.requests["a"].status == RequestStatus.FINISHED_ERROR
    assert engine.outputs["b"] and engine.outputs["c"]
    engine.drain()


def enter_what_waits(engine: Engine) -> set[int]:
    """Report a request's blocks as lost while some of it waits; return what is entered of it."""
    engine.step()
    record = engine.manager.coordinator.ledger.records["a"]
    while not record.waiting:
        engine.step()
    blocks = {block for table in engine.manager.get_block_ids("a") for block in table if block}
    engine.scheduler.recompute_kv_load_failures = False
    assert engine.scheduler._handle_invalid_blocks(set(blocks), {}) >= {"a"}
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ERROR)
    pool = engine.manager.block_pool
    return blocks & {*pool.granules.known, *(b.block_id for b in pool.blocks if b.block_hash)}


def test_what_waits_of_a_lost_request_is_never_entered(switch, monkeypatch):
    assert not enter_what_waits(build("plain", switch, shared_tokens=0))
    monkeypatch.setattr(RankedCaching, "lose", lambda self, request_id: None)
    assert enter_what_waits(build("plain", switch, shared_tokens=0)), "this proves nothing"


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_the_null_block_in_a_reported_table_is_nobodys(switch, policy):
    engine = build("plain", switch, shared_tokens=0)
    engine.scheduler.recompute_kv_load_failures = policy == "recompute"
    reported = report_invalid(engine, "a", turn=4, choose=whole_tables)
    engine.run()
    assert NULL_BLOCK_ID in reported[0], "no window has left anything behind yet"
    failed = RequestStatus.FINISHED_ERROR
    expected = RequestStatus.FINISHED_LENGTH_CAPPED if policy == "recompute" else failed
    assert engine.requests["a"].status == expected
    for name in ("b", "c"):
        assert engine.requests[name].status == RequestStatus.FINISHED_LENGTH_CAPPED
        assert engine.requests[name].num_preemptions == 0, f"{name} holds none of the blocks"
    engine.drain()
