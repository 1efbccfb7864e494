# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's half makes of what its workers tell."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.tier.host_index import HostIndex
from vllm_ascend.tier.layout import GroupLayout, TierLayout
from vllm_ascend.tier.orders import Report
from vllm_ascend.tier.scheduler_side import TierScheduler

UNIT, NUM_WORKERS = 16, 2
LAYOUT = TierLayout(
    unit=UNIT,
    hash_tokens=UNIT,
    rows=(GroupLayout(0, 1, UNIT, 8),),
    tails=(),
    rows_look_ahead=False,
    tail_looks_ahead=False,
    is_replicated=True,
    digest="0",
)


def request(name: str, num_units: int = 4):
    return SimpleNamespace(
        request_id=name,
        num_tokens=num_units * UNIT + 1,
        num_prompt_tokens=num_units * UNIT + 1,
        num_computed_tokens=0,
        kv_transfer_params=None,
        skip_reading_prefix_cache=False,
        block_hashes=[b"%d" % unit for unit in range(num_units)],
    )


def blocks(first: int, num_blocks: int = 5) -> list[KVCacheBlock]:
    return [KVCacheBlock(block_id) for block_id in range(first, first + num_blocks)]


@pytest.fixture
def half() -> TierScheduler:
    """A scheduler's half of two workers, with all units of a prompt in its tier."""
    index = HostIndex(1 << 20, (LAYOUT.unit_bytes, LAYOUT.tail_bytes))
    made = TierScheduler(
        LAYOUT,
        index,
        staging_bytes=1 << 20,
        async_above_bytes=1 << 20,
        num_parts=1,
        num_workers=NUM_WORKERS,
        load_seconds=10.0,
    )
    made.read_tables(lambda request_id: [blocks(1)])
    made.admitted(request("stores"), [blocks(1)], 0)
    keys = [key for run in made.orders({"stores": 4 * UNIT}).stores for key in run.keys]
    assert len(keys) == 4
    made.reported(Report(stored=dict.fromkeys(keys, 1)), set())
    return made


def load(half: TierScheduler, name: str) -> int:
    """Let a request load all units; return the load's name."""
    asked = request(name)
    assert half.look_up(asked, 0) == (4 * UNIT, False)
    half.admitted(asked, [blocks(11)], 4 * UNIT)
    [ordered] = half.orders({}).loads
    return ordered.load_id


@pytest.mark.parametrize("lost", [({11}, {11}), ({11}, set()), (set(), {12})])
def test_a_load_that_fails_on_several_workers_is_counted_once(half, lost):
    load_id = load(half, "loads")
    for lost_block_ids in lost:  # the workers tell of it in different steps
        half.reported(Report(ended={load_id: 1}), lost_block_ids)
    assert half.is_idle()
    assert (half.counts.loads, half.counts.failed_loads) == (1, 1)


def test_loads_that_fail_are_counted_one_by_one(half):
    for name in ("one", "two"):
        half.reported(Report(ended={load(half, name): NUM_WORKERS}), {11})
    assert half.counts.failed_loads == 2


def test_a_load_that_has_failed_is_forgotten_with_the_last_object_that_rests_on_it(half):
    longer = request("computes on", num_units=6)
    assert half.look_up(longer, 0) == (4 * UNIT, False)
    half.admitted(longer, [blocks(11, 8)], 4 * UNIT)
    longer.num_computed_tokens = 4 * UNIT
    ordered = half.orders({"computes on": 2 * UNIT})
    keys = [key for run in ordered.stores for key in run.keys]
    assert len(keys) == 2, "they rest on the load"
    [loading] = ordered.loads
    half.reported(Report(ended={loading.load_id: NUM_WORKERS}), {11})
    assert list(half._stores._failed_loads) == [loading.load_id]
    half.reported(Report(stored=dict.fromkeys(keys, 1)), set())
    assert not half._stores._failed_loads
    assert half._index.contains(keys) == [False, False]


def test_loads_that_fail_leave_nothing_behind(half):
    for number in range(20):
        half.reported(Report(ended={load(half, f"fails {number}"): NUM_WORKERS}), {11})
    assert half.counts.failed_loads == 20 and not half._stores._failed_loads


def test_nothing_is_remembered_of_a_request_that_ends_before_its_load_fails(half):
    """Another request may have its name later."""
    load_id = load(half, "aborted")
    half.ended(request("aborted"))
    half.reported(Report(ended={load_id: NUM_WORKERS}), {11})
    assert half.counts.failed_loads == 1
    assert half.look_up(request("aborted"), 0) == (4 * UNIT, False)


def test_a_tail_that_a_local_hit_rests_on_is_used_as_well(monkeypatch):
    layout = replace(LAYOUT, tails=(GroupLayout(1, 1, UNIT, 8, tail_rows=UNIT),))
    index = HostIndex(1 << 20, (layout.unit_bytes, layout.tail_bytes))
    sizes = dict(staging_bytes=1 << 20, async_above_bytes=1 << 20, num_parts=1, num_workers=1)
    half = TierScheduler(layout, index, load_seconds=10.0, **sizes)
    touched: list[bytes] = []
    monkeypatch.setattr(index, "touch", touched.extend)
    hits_here = request("hits here")
    hits_here.num_computed_tokens = 3 * UNIT + 5  # in the middle of a unit
    half.admitted(hits_here, [blocks(1), blocks(11)], 0)
    half.ended(hits_here)
    assert touched == [layout.tail_key(hits_here.block_hashes, 3 * UNIT)]


def stored_by(half: TierScheduler, steps: dict[int, dict[str, int]]) -> dict[int, int]:
    """Return for each step how many objects it stores."""
    return {
        number: sum(len(run.keys) for run in half.orders(scheduled).stores)
        for number, scheduled in steps.items()
    }


def test_an_answer_is_stored_in_the_step_that_completes_a_unit_or_knows_its_hash(half):
    answers = request("answers", num_units=5)
    answers.block_hashes = [b"a%d" % unit for unit in range(5)]
    half.admitted(answers, [blocks(21, 8)], 0)
    assert stored_by(half, {0: {"answers": 5 * UNIT + 1}}) == {0: 5}
    answers.num_computed_tokens = 5 * UNIT + 1
    for step in range(1, 2 * UNIT):
        # Steps that are scheduled before the one in front has run know a token less.
        num_known = answers.num_computed_tokens - (step > UNIT)
        answers.block_hashes = [b"a%d" % unit for unit in range(num_known // UNIT)]
        number = stored_by(half, {step: {"answers": 1}})[step]
        answers.num_computed_tokens += 1
        assert number == (step in (UNIT, 2 * UNIT)), step


def test_a_tier_that_was_left_alone_takes_what_was_computed_meanwhile(half, monkeypatch):
    answers = request("answers", num_units=5)
    answers.block_hashes = [b"a%d" % unit for unit in range(5)]
    half.admitted(answers, [blocks(21, 8)], 0)
    monkeypatch.setattr(half, "_is_paused", lambda: True)
    assert stored_by(half, {0: {"answers": 5 * UNIT + 1}}) == {0: 0}
    answers.num_computed_tokens = 5 * UNIT + 1
    monkeypatch.undo()
    assert stored_by(half, {1: {"answers": 1}}) == {1: 5}


def test_nothing_is_loaded_for_who_wants_log_probabilities_of_the_prompt(half):
    asked = request("asks for all")
    asked.skip_reading_prefix_cache = True
    assert half.look_up(asked, 0) == (0, False)
