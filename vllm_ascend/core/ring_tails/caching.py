# SPDX-License-Identifier: Apache-2.0
"""Caching where a tail is its windows' blocks and a snapshot of the rings.

The snapshot has no entry of its own. Its slot is the tail's last blocks: it is cached, ranked and
evicted with them. They are entered when the next step starts, so no hit restores what is yet to be
taken. An asynchronous scheduler also enters what it learns between two steps; snapshots of that are
*late*: the next step takes them before it restores or computes anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request

from vllm_ascend.core.layout.groups import Blocks
from vllm_ascend.core.plan.cache_plan import CachePlan
from vllm_ascend.core.ranked_caching import RankedCaching
from vllm_ascend.core.retention.request_record import WaitingTails
from vllm_ascend.core.ring_tails.orders import RingCopy, RingOrders


def check_rings(plan: CachePlan) -> None:
    """Check that hits can be exact where compressor state is in rings.

    Raises:
        ValueError: Nothing would take snapshots, or not for all that need one.
    """
    layout = "compressor state in rings, a prototype,"
    if plan.is_stock:
        raise ValueError(
            f"{layout} needs snapshots, which nothing takes while no switch is set: set "
            "VLLM_ASCEND_PREFIX_CACHE_PROFILE=best, or switch prefix caching off"
        )
    if plan.facts.has_connector:
        raise ValueError(
            f"{layout} cannot be cached beside a KV connector, which hands over no snapshots: "
            "leave --kv-transfer-config out, or switch prefix caching off"
        )
    widest = max(getattr(spec, "sliding_window", None) or 0 for spec in plan.specs)
    if widest > plan.alignment:
        raise ValueError(
            f"{layout} needs windows of at most {plan.alignment} tokens, the distance of "
            f"boundaries, and one has {widest}"
        )


class RingCaching(RankedCaching):
    """Tells workers which snapshots to take and to restore."""

    def connect_parts_by_rank(self) -> None:
        """Build what ranks take, with no orders yet."""
        super().connect_parts_by_rank()
        # What the step being scheduled takes and restores, by request; what it takes first.
        self._to_take: dict[str, list[RingCopy]] = {}
        self._to_restore: dict[str, RingCopy] = {}
        self._late: list[RingCopy] = []

    def take_hit(self, request_id: str, blocks: Blocks, num_local: int, num_external: int) -> None:
        """Let a request in behind its hit, with its rings as they were there."""
        super().take_hit(request_id, blocks, num_local, num_external)
        if num_local:
            ends = (blocks[g.id][num_local // g.block_tokens - 1] for g in self.groups.retained)
            slot = tuple(block.block_id for block in ends)
            self._to_restore[request_id] = RingCopy(request_id, num_local, slot)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Enter what a request's tokens fill, and order the snapshots of its tails."""
        record = self.ledger.record(request.request_id)
        num_known = len(record.waiting)
        super().cache_blocks(request, num_computed_tokens)
        if copies := self._snapshots(request.request_id, record.waiting[num_known:]):
            self._to_take.setdefault(request.request_id, []).extend(copies)

    def _snapshots(self, request_id: str, entries: Sequence[object]) -> list[RingCopy]:
        """Return what is to be taken for tails that wait to be entered."""
        slots: dict[int, list[int]] = {}
        for entry in entries:
            if not isinstance(entry, WaitingTails):
                continue
            table = entry.group.manager.req_to_blocks[request_id]
            for ordinal in entry.ordinals:
                end = (ordinal + 1) * entry.group.block_tokens
                if end % self.plan.alignment == 0:  # else in front of a tail's last block
                    slots.setdefault(end, []).append(table[ordinal].block_id)
        return [RingCopy(request_id, boundary, tuple(slot)) for boundary, slot in slots.items()]

    def withdraw_unwritten(self, request_id: str) -> None:
        """Take back what a request entered and is to restore in the step being scheduled."""
        self._to_take.pop(request_id, None)
        self._to_restore.pop(request_id, None)
        super().withdraw_unwritten(request_id)

    def _take_all(self, request_id: str) -> list[KVCacheBlock]:
        """Take a request's blocks from it; tails that waited are entered, without a successor."""
        blocks = super()._take_all(request_id)
        self.successors.forget(request_id)
        return blocks

    def new_step_starts(self) -> None:
        """A new step is started: what was ordered behind the one before has been computed."""
        self._late += chain.from_iterable(self._to_take.values())
        self._to_take = {}
        super().new_step_starts()

    def step_is_dispatched(self, output: Any) -> None:
        """The step has been scheduled: tell the workers its orders with ``output``."""
        blocks = self.block_pool.blocks
        # The blocks of a request that has ended may have been handed out since.
        late = [c for c in self._late if all(blocks[i].block_hash is not None for i in c.slot)]
        taken, restored = chain.from_iterable(self._to_take.values()), self._to_restore.values()
        orders = RingOrders(tuple(late), tuple(restored), tuple(taken))
        if any(orders):
            output.ring_orders = orders
        self._to_take, self._to_restore, self._late = {}, {}, []
        super().step_is_dispatched(output)
