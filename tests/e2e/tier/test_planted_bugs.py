# SPDX-License-Identifier: Apache-2.0
"""Bugs planted in the tier: the content oracle objects to each."""

from __future__ import annotations

import pytest

from tests.e2e.tier.test_random_traffic import cell, run, small_units
from tests.e2e.tier.test_shared_pool import pool, run_engines
from tests.e2e.tier.tier_engine import holds_lost_rows
from vllm_ascend.tier import objects, progress
from vllm_ascend.tier.host_memory import HostStore
from vllm_ascend.tier.layout import TierLayout
from vllm_ascend.tier.objects import HEADER_BYTES
from vllm_ascend.tier.scheduler_side import TierScheduler
from vllm_ascend.tier.store_orders import StoreOrders
from vllm_ascend.tier.worker_side import TierWorker
from vllm_ascend_evaluation.oracle import ContentViolation, IntegrityError
from vllm_ascend_evaluation.oracle.connected_worker import ConnectedWorker
from vllm_ascend_evaluation.oracle.worker import ShadowWorker

__all__ = ["pool", "small_units"]

CELL = cell("dsv4-rows", "plain", "best")


CAUGHT = (ContentViolation, IntegrityError, AssertionError)


def assert_caught_by_another_engine(switch) -> None:
    """It sends the same prompts, and loads what was stored of them."""
    with pytest.raises(CAUGHT):
        run_engines(CELL, switch, 3, num_steps=150)


def assert_caught(switch) -> None:
    with pytest.raises(CAUGHT):
        for room, async_above_mib in ((1.3, 64), (1.2, 0), (4.0, 64)):
            run(CELL, switch, room, 0.01, 200, async_above_mib=async_above_mib)


def test_without_a_bug_nothing_is_caught(switch):
    engine = run(CELL, switch, 1.2, 0.01, 200, async_above_mib=64)
    assert engine.tier.counts.loads > 5


def test_a_hit_a_unit_too_far_is_caught(switch, monkeypatch):
    look_up = TierScheduler.look_up

    def too_far(self, request, num_local):
        tokens, is_async = look_up(self, request, num_local)
        longer = tokens + self._layout.unit
        return (longer if tokens and num_local + longer < request.num_tokens else tokens), is_async

    monkeypatch.setattr(TierScheduler, "look_up", too_far)
    assert_caught(switch)


def test_a_tail_of_another_boundary_is_caught(switch, monkeypatch, pool):
    tail_segments = progress.tail_segments

    def shifted(layout, boundary, tables):
        # The first boundary has none in front.
        return tail_segments(layout, max(boundary - layout.unit, layout.unit), tables)

    monkeypatch.setattr("vllm_ascend.tier.store_orders.tail_segments", shifted)
    assert_caught_by_another_engine(switch)


def test_a_load_before_zeroing_and_copies_is_caught(switch, monkeypatch):
    def too_early(self, output):
        self.connector.bind_connector_metadata(output.kv_connector_metadata)
        self.connector.start_load_kv(None)
        ShadowWorker._update_requests(self, output)

    monkeypatch.setattr(ConnectedWorker, "_update_requests", too_early)
    with pytest.raises((*CAUGHT, KeyError)):
        for room in (1.3, 1.2):
            run(CELL, switch, room, 0.01, 200, async_above_mib=64)


def test_rows_gathered_a_step_late_are_caught(switch, monkeypatch):
    """Their blocks may be somebody else's by then."""
    end = TierWorker.end

    def late(self):
        self._stores, self.__dict__["kept"] = self.__dict__.get("kept", []), self._stores
        end(self)

    monkeypatch.setattr(TierWorker, "end", late)
    assert_caught(switch)


def test_rows_stored_before_they_are_computed_are_caught(switch, monkeypatch, pool):
    start = TierWorker.start

    def stores_at_once(self, orders):
        start(self, orders)
        self.end()

    monkeypatch.setattr(TierWorker, "start", stores_at_once)
    assert_caught_by_another_engine(switch)


def test_a_name_without_the_token_behind_it_is_caught_with_drafts(switch, monkeypatch):
    name = TierLayout.name
    monkeypatch.setattr(
        TierLayout,
        "name",
        lambda self, hashes, end, looks_ahead: name(self, hashes, end, looks_ahead=False),
    )
    with pytest.raises(CAUGHT):
        for room in (1.3, 1.2, 1.1):
            run(cell("dsv4-rows", "mtp3", "best"), switch, room, 0.01, 300)


def test_flipped_bytes_that_nobody_checks_are_caught(switch, monkeypatch, pool):
    pool.flips = 0.05
    monkeypatch.setattr("vllm_ascend.tier.mooncake.why_unusable", lambda *args: None)
    with pytest.raises(CAUGHT):
        run_engines(CELL, switch, 3, num_steps=150)


def test_what_was_computed_behind_a_lost_load_and_stored_is_caught(switch, monkeypatch):
    """Here the oracle looks into the memory itself as well: few such rows are ever loaded."""
    why, lost = objects.why_unusable, []
    count = iter(range(1 << 30))

    def often_torn(*args):
        return "torn" if next(count) % 15 == 14 else why(*args)

    monkeypatch.setattr("vllm_ascend.tier.host_memory.why_unusable", often_torn)
    write = HostStore.write

    def write_and_look(self, keys, places, data, layout):
        lost.extend(
            key for key, row in zip(keys, data, strict=True) if holds_lost_rows(row[HEADER_BYTES:])
        )
        return write(self, keys, places, data, layout)

    monkeypatch.setattr(HostStore, "write", write_and_look)
    for room in (1.2, 1.3):
        engine = run(CELL, switch, room, 0.01, 300, async_above_mib=64)
        assert lost, "nothing was computed behind a lost load, so it proves nothing"
        assert not engine.stores_lost_rows()
    monkeypatch.setattr(StoreOrders, "load_failed", lambda self, load_id: True)
    lost.clear()
    try:
        is_caught = run(CELL, switch, 1.2, 0.01, 300, async_above_mib=64).stores_lost_rows()
    except CAUGHT:
        is_caught = True
    assert lost and is_caught, "without the rule it is stored"
