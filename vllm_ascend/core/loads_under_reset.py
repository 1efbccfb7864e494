# SPDX-License-Identifier: Apache-2.0
"""What becomes of requests with loaded blocks when the cache is reset under running requests.

vLLM preempts those that run. A request that waits for a load, or whose load has ended, holds blocks
as well, and vLLM's reset ends in an error. Here their loads are given up: what has been loaded goes
at once, and what is still being written belongs to nobody until the load has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from vllm_ascend.core.admission.waiting_queues import waiting_queues
from vllm_ascend.core.plan.vllm_terms import VllmTerms
from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool


def is_loaded(scheduler: Scheduler, request: Request) -> bool:
    """Whether a waiting request holds blocks that have been loaded."""
    if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
        return request.request_id in scheduler.finished_recving_kv_req_ids
    is_ready = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    return is_ready and request.num_computed_tokens > 0


def start_over(scheduler: Scheduler, request: Request) -> None:
    """Take a waiting request's blocks back: it is computed, or loaded again."""
    scheduler.kv_cache_manager.free(request)
    request.num_computed_tokens = 0
    _terms(scheduler).forget_prefill(scheduler, request)


def frees_are_delayed(scheduler: Scheduler) -> bool:
    """Whether requests that have ended hold blocks which a connector still uses."""
    in_queues = (scheduler.running, *waiting_queues(scheduler))
    if len(scheduler.requests) <= sum(map(len, in_queues)):
        return False
    return any(request.is_finished() for request in scheduler.requests.values())


def give_up_loads(scheduler: Scheduler) -> set[int]:
    """Let waiting requests start over; return the blocks that loads under way may still write."""
    written: set[int] = set()
    for request in chain(*waiting_queues(scheduler)):
        name = request.request_id
        is_waiting = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        if is_loaded(scheduler, request):
            start_over(scheduler, request)
            if is_waiting:
                scheduler.finished_recving_kv_req_ids.discard(name)
                scheduler.failed_recving_kv_req_ids.discard(name)
                preempted = request.num_preemptions
                request.status = RequestStatus.PREEMPTED if preempted else RequestStatus.WAITING
        elif is_waiting:
            # As after a load that fails: its blocks are freed when the load has ended.
            request.num_computed_tokens = 0
            _terms(scheduler).forget_prefill(scheduler, request)
            scheduler.failed_recving_kv_req_ids.add(name)
            written |= _blocks(scheduler, request)
    for request in scheduler.requests.values():
        if request.is_finished():
            written |= _blocks(scheduler, request)
    for _, blocks in getattr(scheduler, "deferred_frees", ()):
        written.update(block.block_id for block in blocks)
    return written - {NULL_BLOCK_ID}


@contextmanager
def leaving_in_use(pool: BlockPool, block_ids: Collection[int]) -> Iterator[None]:
    """Let resets of a pool inside leave some blocks to who uses them."""
    if isinstance(pool, AscendBlockPool):
        with pool.leaving(block_ids):
            yield
        return
    pool.num_gpu_blocks -= len(block_ids)  # vLLM's own counts those in use, and resets names alone
    try:
        yield
    finally:
        pool.num_gpu_blocks += len(block_ids)


def _terms(scheduler: Scheduler) -> VllmTerms:
    return scheduler.kv_cache_manager.coordinator.plan.terms


def _blocks(scheduler: Scheduler, request: Request) -> set[int]:
    tables = scheduler.kv_cache_manager.get_block_ids(request.request_id)
    return {block_id for table in tables for block_id in table}
