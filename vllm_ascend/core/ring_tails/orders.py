# SPDX-License-Identifier: Apache-2.0
"""What a scheduler tells a worker about rings, with each step."""

from __future__ import annotations

from typing import Any, NamedTuple


class RingCopy(NamedTuple):
    """One snapshot to take or to restore.

    Attributes:
        request_id: Whose ring.
        boundary: The ring's rows of the tokens just before this one.
        slot: Where the snapshot is: the ids of the last blocks of the boundary's tail, one for
            each group of windows.
    """

    request_id: str
    boundary: int
    slot: tuple[int, ...]


class RingOrders(NamedTuple):
    """The orders of a step, in the order in which they are carried out.

    Attributes:
        late: Snapshots of what earlier steps have computed, also of requests that have ended since.
        restores: Into rings that are empty otherwise.
        snapshots: Of requests that the step computes. Their boundaries may lie inside it, or
            before its first token. No tokens before them are drafts.
    """

    late: tuple[RingCopy, ...] = ()
    restores: tuple[RingCopy, ...] = ()
    snapshots: tuple[RingCopy, ...] = ()


def orders_of(scheduler_output: Any) -> RingOrders:
    """Return the orders that a ``SchedulerOutput`` carries; none where no layout has rings."""
    return getattr(scheduler_output, "ring_orders", None) or RingOrders()
