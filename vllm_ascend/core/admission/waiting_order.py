# SPDX-License-Identifier: Apache-2.0
"""The order of the waiting queue where memory is short: see ``policy.admission`` for the rule.

It is short if those that came first do not fit into it, as many as there are seats. Where seats
alone are short, they go as they came: nothing is won by letting cold ones wait, unless prompts were
lost lately. Beside a connector that is a cache, what memory gives up is loaded again, until prompts
are lost there as well.

Only requests that own nothing yet change places. Whoever was preempted, has loaded rows or is
handed some keeps its place, and nobody crosses it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from weakref import ReferenceType, ref

from vllm.logger import init_logger
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.request import Request

from vllm_ascend.core.admission.running_share import RunningShare, owns_nothing
from vllm_ascend.core.admission.waiting_queues import most_running
from vllm_ascend.core.connectors.connector_rules import IS_A_CACHE
from vllm_ascend.core.policy.admission import MOST_PASSES, cached_first
from vllm_ascend.core.policy.units import GroupId
from vllm_ascend.core.reporting.cache_stats import CacheStats

_logger = init_logger("vllm.plugins.vllm_ascend_backport")

_number = attrgetter("number")
LOOK_UPS_PER_STEP = 16
"""So many waiting prompts are looked up before a step at most; the others are as remembered."""


@dataclass
class _Place:
    """What is remembered of a request that waits.

    Attributes:
        weak: The request, which must not outlive its end here: nothing is noted until requests
            are ordered anew.
        number: Numbers count up in the order of arrival.
        passes: How many that came later have been let in.
        left: Tokens to compute when it was looked up last; all of them before that.
        looked_up: The ordering in which that was; 0: never.
    """

    weak: ReferenceType[Request]
    number: int
    left: int
    passes: int = 0
    looked_up: int = 0

    def is_of(self, request: Request) -> bool:
        """Whether it is this request's, and not another one's of the same name."""
        return self.weak() is request

    @property
    def request(self) -> Request:
        """The request, as long as it waits."""
        request = self.weak()
        assert request is not None, "the queue holds it"
        return request


class WaitingOrder:
    """Puts waiting requests into order before a step of a scheduler with vLLM's own queues.

    Nothing is done, nor looked up, where nobody can be let in or memory is not short.

    The promise: however many come, and whatever is cached, at most ``most_passes`` requests that
    came later are let in before a request by this order. vLLM takes requests from the front, so
    what the last order has left behind keeps the promise as well until the next one.

    Attributes:
        most_passes: See above.
        share: How much memory those that run may hold.
    """

    def __init__(self, share: RunningShare, stats: CacheStats, *, has_tier: bool = False) -> None:
        """Order those that wait where ``share`` lets only some of them in.

        Args:
            has_tier: There is a connector that is a cache.
        """
        self.share, self.most_passes, self._stats = share, MOST_PASSES, stats
        self._has_tier = has_tier
        self._places: dict[str, _Place] = {}
        self._orderings = self._last_number = 0
        # What the last ordering left behind: unchanged, it would come out the same.
        self._seen: tuple[int, str, str] | None = None
        self._free_blocks = 0
        self._is_as_they_came = True

    def put(self, scheduler: Any) -> None:
        """Order ``scheduler.waiting`` if somebody can be let in and somebody else cannot."""
        self.share.step_starts(scheduler.running)
        waiting = scheduler.waiting
        if len(waiting) < 2:
            if len(self._places) > len(waiting):
                self._update(waiting)
                self._seen = None
            return
        if _lets_nobody_in(scheduler):
            return
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        seen = _seen(waiting)
        if free <= self._free_blocks and seen == self._seen:
            return
        self._update(waiting)
        is_short = self._memory_is_short(scheduler, free)
        if is_short:
            self._look_up(scheduler.kv_cache_manager.coordinator)
        if is_short or not self._is_as_they_came:
            order = self._ordered(list(waiting), is_short=is_short)
            waiting.clear()
            waiting.extend(order)
        self._is_as_they_came = not is_short
        self._free_blocks, self._seen = free, _seen(waiting)

    def _update(self, waiting: Iterable[Request]) -> None:
        """Take note of who has come and who has gone since the last ordering."""
        before, self._places = self._places, {}
        for request in waiting:
            if not owns_nothing(request):
                continue
            name = request.request_id
            if (place := before.get(name)) is not None and place.is_of(request):
                del before[name]
            else:
                self._last_number += 1
                place = _Place(ref(request), self._last_number, request.num_tokens)
            self._places[name] = place
        if gone := sorted(place.number for place in before.values()):
            first = min((place.number for place in self._places.values()), default=gone[-1])
            self._stats.passed_requests += len(gone) - bisect_right(gone, first)
            for place in self._places.values():
                place.passes += len(gone) - bisect_right(gone, place.number)

    def _memory_is_short(self, scheduler: Any, free: int) -> bool:
        """Whether those that came first cannot all run, as many as there are seats.

        Where prompts were lost, cold ones in the few seats would push out what the others hit.
        """
        num_seats = most_running(scheduler) - len(scheduler.running)
        if self.share.is_in_force and len(self._places) > num_seats:
            return True
        if self._has_tier and not self.share.is_in_force:
            return False
        coordinator, free = scheduler.kv_cache_manager.coordinator, free - self.share.blocks_kept()
        for place in sorted(self._places.values(), key=_number)[:num_seats]:
            need = _most_blocks(coordinator, place.request.num_tokens)
            if need is None or need > free:
                return True
            free -= need
        return False

    def _look_up(self, coordinator: Any) -> None:
        """Look those up again whose look-ups are oldest."""
        self._orderings += 1
        stalest = sorted(self._places.values(), key=lambda place: place.looked_up)
        for place in stalest[:LOOK_UPS_PER_STEP]:
            request, place.looked_up = place.request, self._orderings
            place.left = request.num_tokens
            if request.block_hashes and not getattr(request, "skip_reading_prefix_cache", False):
                find = coordinator.lookup.find
                place.left -= find(request.block_hashes, request.num_tokens - 1).tokens

    def _ordered(self, waiting: Sequence[Request], *, is_short: bool) -> list[Request]:
        order: list[Request] = []
        movable: list[_Place] = []
        for request in waiting:
            if (place := self._places.get(request.request_id)) is not None:
                movable.append(place)
                continue
            order += self._arranged(movable, is_short=is_short)
            order.append(request)
            movable = []
        return order + self._arranged(movable, is_short=is_short)

    def _arranged(self, places: list[_Place], *, is_short: bool) -> list[Request]:
        """Return requests cached ones first where memory is short, else as they came."""
        places.sort(key=_number)
        if is_short:
            shares = [place.left / place.request.num_tokens for place in places]
            passes = [place.passes for place in places]
            places = [places[at] for at in cached_first(shares, passes, self.most_passes)]
        return [place.request for place in places]


def waiting_order_for(scheduler: Any) -> WaitingOrder | None:
    """Return an order for a scheduler that has none of its own.

    Only vLLM's own ``schedule()``, synchronous or not, over its first-come queue is known to let
    requests in from the front. With priorities, or under a class that schedules itself, as several
    of vllm-ascend's do, nothing is ordered, and one line of the log says so.
    """
    if scheduler.policy != SchedulingPolicy.FCFS:
        why = f"--scheduling-policy {scheduler.policy.value} has an order of its own"
    else:
        schedule = type(scheduler).schedule
        if schedule.__module__ == "vllm.v1.core.sched.scheduler":
            manager = scheduler.kv_cache_manager
            coordinator = manager.coordinator
            groups, stats = coordinator.groups.all, coordinator.stats
            share = RunningShare(manager.block_pool, groups, scheduler.requests, stats)
            has_tier = coordinator.plan.facts.connector_takes(IS_A_CACHE)
            return WaitingOrder(share, stats, has_tier=has_tier)
        why = f"{schedule.__qualname__} has an order of its own"
    _logger.info("VLLM_ASCEND_ADMISSION=cached has no effect: %s", why)
    return None


def _seen(waiting: Sequence[Request]) -> tuple[int, str, str]:
    """Return what tells one queue from another: names, since requests that have ended must go."""
    return len(waiting), waiting[0].request_id, waiting[-1].request_id


def _lets_nobody_in(scheduler: Any) -> bool:
    """Whether the next step can take no new request, as far as can be told at once."""
    running = scheduler.running
    if len(running) >= most_running(scheduler):
        return True
    if scheduler.pause_state != PauseState.UNPAUSED:
        return True
    if not running or scheduler.scheduler_config.long_prefill_token_threshold:
        return False
    # The last one takes what the others leave of a step.
    last = running[-1]
    return last.num_tokens - last.num_computed_tokens >= scheduler.max_num_scheduled_tokens


def _most_blocks(coordinator: Any, num_tokens: int) -> int | None:
    """Return the most blocks that a request holds in all groups; ``None``: nobody knows."""
    footprint, total = coordinator.request_footprint, 0
    for group_id in range(len(footprint.groups)):
        blocks = footprint.blocks(GroupId(group_id), num_tokens)
        if blocks is None:
            return None
        total += blocks
    return total
