# SPDX-License-Identifier: Apache-2.0
"""A scheduler's two queues of waiting requests, of which one has those that hold blocks."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import RequestStatus

_READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


def queue_of_holders(scheduler: Any) -> RequestQueue:
    """Return the queue in which requests wait for a load, and hold blocks when it has ended."""
    terms = scheduler.kv_cache_manager.coordinator.plan.terms
    return getattr(scheduler, terms.queue_of_holders)


def waiting_queues(scheduler: Any) -> tuple[RequestQueue, RequestQueue]:
    """Return both queues of waiting requests."""
    return scheduler.waiting, queue_of_holders(scheduler)


def most_running(scheduler: Any) -> int:
    """Return how many requests a scheduler lets run at a time."""
    terms = scheduler.kv_cache_manager.coordinator.plan.terms
    return getattr(scheduler, terms.most_running)


def let_holders_go_first(scheduler: Any) -> None:
    """Move requests that hold nothing out of the queue of those that hold blocks.

    A request whose load has failed stays there, and starts anew. If it found no memory, nobody
    behind it would be let in, and each of those holds some.
    """
    holders = queue_of_holders(scheduler)
    holds_nothing = [r for r in holders if r.status in _READY and r.num_computed_tokens == 0]
    if holds_nothing:
        holders.remove_requests(holds_nothing)
        for request in reversed(holds_nothing):
            scheduler.waiting.prepend_request(request)
