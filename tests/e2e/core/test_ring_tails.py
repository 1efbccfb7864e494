# SPDX-License-Identifier: Apache-2.0
"""Compressor state in rings: every step of random traffic verified, and planted bugs caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from zlib import crc32

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import CASES, FEW_LAYERS, Case, Configuration
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.workload import Workload
from vllm_ascend.core.policy.boundaries import align_down
from vllm_ascend.core.ring_tails.caching import RingCaching
from vllm_ascend.core.ring_tails.orders import RingCopy, RingOrders, orders_of
from vllm_ascend.dry_run.layouts import dsv4_flash_a3, in_rings
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.releases import running_release
from vllm_ascend_evaluation.oracle import ContentViolation, rings

_STEPS = 300
_ROOMS = (1.05, 2.0, 5.0)


def _case(name: str, make: Callable) -> Case:
    (case,) = (case for case in CASES if case.name == name)
    return replace(case, name=f"{name}-rings", make=make)


TINY = _case("dsv4-rows", lambda k: in_rings(layouts.dsv4_rows_tiny(mtp=k > 0)))
A3 = _case(
    "dsv4-a3-32",
    lambda k: in_rings(dsv4_flash_a3(32, num_draft_layers=min(k, 1), compress_ratios=FEW_LAYERS)),
)


def cell(case: Case, mode: str, switches: str) -> Configuration:
    like = Configuration.named(case.name.removesuffix("-rings"), mode, switches)
    return Configuration(case, like.mode, like.switches)


_MODES = ["plain", "priority", "mtp1", "mtp3", "async", "async-mtp"]
if running_release().has_dspark:
    _MODES += ["dspark3", "async-dspark7"]
CELLS = [
    *(cell(TINY, mode, switches) for mode in _MODES for switches in ("partial-0", "best")),
    *(cell(TINY, "plain", switches) for switches in ("retention-N", "pin-best", "admission")),
    *(cell(A3, mode, "best") for mode in ("plain", "async-mtp")),
]


def engine_of(make_engine: MakeEngine, cell: Configuration, room: float, seed: int) -> Engine:
    return make_engine(
        lambda: cell.layout,
        lambda: cell.options(room),
        cell.oracle(seed),
        cell.environment,
        name=str(cell),
    )


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_no_step_reads_or_restores_wrong_rows(cell: Configuration, make_engine: MakeEngine) -> None:
    hits = 0
    for number, room in enumerate(_ROOMS):
        seed = crc32(f"{cell} {number}".encode())
        engine = engine_of(make_engine, cell, room, seed)
        Workload(engine, cell.traffic, seed).run(_STEPS)
        hits += sum(engine.hits.values())
    assert hits


# Bugs


def one_step_late(patch: pytest.MonkeyPatch) -> None:
    """Take snapshots with the step behind the one that passes the boundary."""
    original = RingCaching.step_is_dispatched

    def step_is_dispatched(self, output):
        original(self, output)
        orders = orders_of(output)
        before, self.before = getattr(self, "before", ()), orders.snapshots
        before = tuple(o for o in before if o.request_id in output.num_scheduled_tokens)
        output.ring_orders = orders._replace(snapshots=before)

    patch.setattr(RingCaching, "step_is_dispatched", step_is_dispatched)


def from_another_boundary(patch: pytest.MonkeyPatch) -> None:
    """Restore the snapshot that was taken last."""
    original = RingCaching.step_is_dispatched

    def step_is_dispatched(self, output):
        original(self, output)
        orders = orders_of(output)
        last = getattr(self, "last", None)
        if last is not None:
            restores = tuple(order._replace(slot=last) for order in orders.restores)
            output.ring_orders = orders._replace(restores=restores)
        if orders.snapshots:
            self.last = orders.snapshots[-1].slot

    patch.setattr(RingCaching, "step_is_dispatched", step_is_dispatched)


def of_drafts(patch: pytest.MonkeyPatch) -> None:
    """Take a snapshot as drafts pass a boundary, and none once tokens are known to have."""
    original = RingCaching.step_is_dispatched

    def step_is_dispatched(self, output):
        early = self.__dict__.setdefault("early", set())
        taken = []
        for name, drafts in output.scheduled_spec_decode_tokens.items():
            request = self.ledger.records[name].request
            end = request.num_computed_tokens + output.num_scheduled_tokens[name]
            boundary = align_down(end, self.plan.alignment)
            if end - len(drafts) < boundary:
                tables = [(g.manager.req_to_blocks[name], g) for g in self.groups.retained]
                slot = tuple(t[boundary // g.block_tokens - 1].block_id for t, g in tables)
                taken.append(RingCopy(name, boundary, slot))
                early.add((name, boundary))
        original(self, output)
        orders = orders_of(output)
        late, known = (
            tuple(o for o in copies if (o.request_id, o.boundary) not in early)
            for copies in (orders.late, orders.snapshots)
        )
        output.ring_orders = RingOrders(late, orders.restores, (*known, *taken))

    patch.setattr(RingCaching, "step_is_dispatched", step_is_dispatched)


def no_restore(patch: pytest.MonkeyPatch) -> None:
    """Let requests go on behind a hit with empty rings."""
    original = RingCaching.step_is_dispatched

    def step_is_dispatched(self, output):
        self._to_restore = {}
        original(self, output)

    patch.setattr(RingCaching, "step_is_dispatched", step_is_dispatched)


def nothing_late(patch: pytest.MonkeyPatch) -> None:
    """Forget what is learned between two steps."""
    original = RingCaching.step_is_dispatched

    def step_is_dispatched(self, output):
        self._late = []
        original(self, output)

    patch.setattr(RingCaching, "step_is_dispatched", step_is_dispatched)


def rings_without_room_for_drafts(patch: pytest.MonkeyPatch) -> None:
    """Give rings the rows of the compressor's windows alone."""
    patch.setattr(rings.layout, "ring_rows", lambda window, num_drafts: window)


BUGS = (
    (one_step_late, cell(TINY, "plain", "best")),
    (one_step_late, cell(TINY, "async", "best")),
    (from_another_boundary, cell(TINY, "plain", "partial-0")),
    (of_drafts, cell(TINY, "mtp3", "best")),
    (of_drafts, cell(TINY, "async-mtp", "best")),
    (nothing_late, cell(TINY, "async-mtp", "best")),
    (no_restore, cell(TINY, "plain", "best")),
    (rings_without_room_for_drafts, cell(TINY, "mtp3", "best")),
    (rings_without_room_for_drafts, cell(TINY, "async-mtp", "best")),
)


@pytest.mark.parametrize(
    ("plant", "cell"), BUGS, ids=[f"{plant.__name__}-{cell.mode.name}" for plant, cell in BUGS]
)
def test_the_oracle_catches(
    plant: Callable, cell: Configuration, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(ContentViolation, match="ring"):
        for seed in range(3):
            engine = engine_of(make_engine, cell, 5.0, seed)
            Workload(engine, cell.traffic, seed).run(1000)


# What is ordered when


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """DeepSeek-V4's own sizes, one layer of each kind."""
    options = SchedulerOptions(num_blocks=2000, max_num_batched_tokens=1024, max_model_len=20_000)
    environment = {
        "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
        "VLLM_ASCEND_DSV4_PARTIAL_HITS": "1",
        "VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "512",
    }
    layout = dsv4_flash_a3(128, num_draft_layers=0, compress_ratios=FEW_LAYERS)
    return make_engine(lambda: in_rings(layout), options, environment=environment)


def watch(engine: Engine) -> list[RingOrders]:
    """Return a list that every step's orders are entered in."""
    told: list[RingOrders] = []
    execute = engine.worker.execute

    def note(output):
        told.append(orders_of(output))
        return execute(output)

    engine.worker.execute = note
    return told


def test_a_chunk_takes_the_snapshots_of_the_kept_boundaries_that_it_passes(engine: Engine) -> None:
    told = watch(engine)
    engine.add("a", list(range(1900)), 1)
    engine.run()
    taken = [[o.boundary for o in orders.snapshots] for orders in told if orders.snapshots]
    # Steps of 1,024 tokens: every 512 tokens, and the replay boundary.
    assert taken == [[512, 1024], [1536, 1792]]
    num_groups = len(engine.manager.coordinator.groups.retained)
    slots = [order.slot for orders in told for order in orders.snapshots]
    assert [len(set(slot)) for slot in slots] == [num_groups] * 4


@pytest.mark.parametrize("num_shared", [128, 512, 1024, 1792])
def test_a_hit_restores_the_snapshot_of_its_boundary(engine: Engine, num_shared: int) -> None:
    told = watch(engine)
    prompt = list(range(1900))
    engine.add("a", prompt, 1)
    engine.run()
    slots = {o.boundary: o.slot for orders in told for o in orders.snapshots}
    engine.add("b", [*prompt[:num_shared], *range(5000, 5300)], 1)
    engine.run()
    restored = [order for orders in told for order in orders.restores]
    expected = [RingCopy("b", num_shared, slots[num_shared])] if num_shared in slots else []
    assert restored == expected
    assert engine.hits["b"] == (num_shared if expected else 0)


def test_what_is_learned_between_two_steps_is_taken_first(make_engine: MakeEngine) -> None:
    """Which drafts were right is known when the next step is scheduled already."""
    configuration = cell(TINY, "async-mtp", "best")
    engine = engine_of(make_engine, configuration, 5.0, seed=0)
    told = watch(engine)
    engine.add("a", list(range(20)), 60)
    engine.run()
    boundary = next(order.boundary for orders in told for order in orders.late)
    said = [*range(20), *engine.outputs["a"]]
    # The draft layer's row before the boundary is of the granule behind it.
    engine.add("b", [*said[: boundary + 16], *range(3)], 1)
    engine.run()
    assert engine.hits["b"] == boundary > 0
    engine.drain()


def test_nobody_hits_what_the_same_step_takes(engine: Engine) -> None:
    """A ring is restored before the step that takes the snapshot has run."""
    prompt = list(range(400))
    engine.add("a", prompt, 4)
    engine.add("b", prompt, 4)
    engine.step()
    engine.add("c", prompt, 4)
    engine.run()
    assert engine.hits == {"a": 0, "b": 0, "c": 384}
    engine.drain()
