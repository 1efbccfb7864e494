# SPDX-License-Identifier: Apache-2.0
"""The engine loop of vLLM without a model: the real scheduler and the oracle's worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
from vllm_ascend.dry_run.layouts import KVLayout
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend_evaluation.oracle import (
    OracleOptions,
    ShadowWorker,
    check_drained,
    check_integrity,
)

# As many batches as vLLM's EngineCore keeps in flight with asynchronous scheduling.
_BATCHES_IN_FLIGHT = 2
_MAX_IDLE_TURNS = 20

# How strict the proof is, or what decides so once the scheduler is there.
Oracle = OracleOptions | Callable[[Scheduler], OracleOptions]


class Engine:
    """Drives one scheduler; every step is verified.

    Attributes:
        hits: request id -> hit tokens at its first scheduling.
        idle_turns: turns in a row in which requests waited and none was scheduled.
        outputs: request id -> tokens that were returned to the client so far.
        num_preemptions: requests that had to give their blocks up for want of memory.
    """

    def __init__(
        self, layout: KVLayout, options: SchedulerOptions, oracle: Oracle | None = None
    ) -> None:
        self.scheduler: Scheduler = build_scheduler(layout, options)
        self.worker = self.make_worker(oracle(self.scheduler) if callable(oracle) else oracle)
        self.requests: dict[str, Request] = {}
        self.hits: dict[str, int] = {}
        self.outputs: dict[str, list[int]] = {}
        self.num_preemptions = 0
        self._is_async = isinstance(self.scheduler, AsyncScheduler)
        self.idle_turns = 0
        # A step, its result, and the requests whose part in it rests on a load that failed.
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput, frozenset[str]]] = deque()

    def make_worker(self, oracle: OracleOptions | None) -> ShadowWorker:
        """Return what executes the steps."""
        return ShadowWorker(self.scheduler, oracle)

    @property
    def manager(self):
        return self.scheduler.kv_cache_manager

    @property
    def alive(self) -> list[str]:
        """Requests that the scheduler knows, in order of arrival."""
        return list(self.scheduler.requests)

    def add(self, request_id: str, prompt: list[int], max_tokens: int, **kwargs) -> Request:
        """Enqueue a request."""
        return self.submit(make_request(self.scheduler, request_id, prompt, max_tokens, **kwargs))

    def say(self, session: str, tokens: list[int], max_tokens: int = 1) -> None:
        """Send a streaming session more input, its first included; without tokens it ends."""
        # vLLM extends the list.
        request = make_request(self.scheduler, session, [*tokens] or [0], max_tokens)
        request.resumable = bool(tokens)
        if session in self.scheduler.requests:
            self.continue_session(request)
        else:
            self.submit(request)

    def submit(self, request: Request) -> Request:
        """Enqueue a request that is made already."""
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        self.scheduler.add_request(request)
        return request

    def continue_session(self, request: Request) -> None:
        """More input for a streaming session, or its end: a request of the same name."""
        self.scheduler.add_request(request)

    def idle_sessions(self) -> list[str]:
        """Streaming sessions that hold their blocks until their clients send more."""
        waits = RequestStatus.WAITING_FOR_STREAMING_REQ
        return [name for name, r in self.scheduler.requests.items() if r.status == waits]

    def abort(self, request_ids: list[str]) -> None:
        """The client has gone, whatever its request is doing."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def step(self, between: Callable[[SchedulerOutput], None] | None = None) -> bool:
        """One turn of the engine.

        Args:
            between: called after a batch was executed and before its output is processed, where
                EngineCore handles aborts.

        Returns:
            Whether there was anything to do.
        """
        has_work = self.scheduler.has_requests()
        if has_work:
            output = self.scheduler.schedule()
            result = self.worker.execute(output)
            self._note_hits(output)
            self.num_preemptions += len(output.preempted_req_ids or ())
            self._in_flight.append((output, result, self.worker.lost_request_ids()))
            executed = output.total_num_scheduled_tokens > 0
            self._watch_progress(executed)
            if self._is_async and executed and len(self._in_flight) < _BATCHES_IN_FLIGHT:
                return True
        elif not self._in_flight:
            return False
        output, result, lost = self._in_flight.popleft()
        if between is not None:
            between(output)
        for outputs in self.scheduler.update_from_output(output, result).values():
            for request_output in outputs.outputs:
                name, tokens = request_output.request_id, request_output.new_token_ids
                assert not (tokens and name in lost), f"{name} answers from a load that failed"
                self.outputs[name].extend(tokens)
        drafts = self.worker.take_draft_token_ids()
        if drafts is not None and output.total_num_scheduled_tokens > 0:
            self.scheduler.update_draft_token_ids(drafts)
        return True

    def run(self) -> None:
        """Step until all requests have ended."""
        while self.step():
            pass

    def reset(self, *, busy: bool = False) -> bool:
        """Reset the prefix cache; with `busy`, by preempting all running requests."""
        return self.scheduler.reset_prefix_cache(reset_running_requests=busy)

    def sleep(self, level: int, mode: str) -> None:
        """Do to the scheduler what EngineCore's `sleep` does; adds are queued from then on.

        Args:
            level: From 1 on the KV cache's memory is given up as well.
            mode: What becomes of requests: `abort`, `wait` for those that run, or `keep` them.
        """
        if mode == "abort":
            self.scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
        state = PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW
        self.scheduler.set_pause_state(state)
        self.run()
        if level >= 1:
            assert self.reset(busy=True), "the cache could not be reset before the engine sleeps"
            self.scheduler.reset_encoder_cache()
            self.worker.lose_memory()

    def wake_up(self) -> None:
        """Go on scheduling."""
        self.scheduler.set_pause_state(PauseState.UNPAUSED)

    def check(self) -> None:
        """Check the invariants of pool, queue, index and tables, and what the index holds."""
        # Beside a connector, later releases free blocks once no step in flight can write them.
        waiting = getattr(self.scheduler, "deferred_frees", ())
        freed_later = [block for _, blocks in waiting for block in blocks]
        check_integrity(self.manager, freed_later, self._given_up())
        if isinstance(self.manager.coordinator, AscendHybridKVCacheCoordinator):
            self.worker.check_index()  # vLLM's own enters what it may have to compute again

    def _given_up(self) -> set[int]:
        """Return the blocks of requests that start over when their loads have ended."""
        scheduler = self.scheduler
        names = getattr(scheduler, "failed_recving_kv_req_ids", ())
        given_up = [r for name in names if (r := scheduler.requests.get(name)) is not None]
        tables = [
            self.manager.get_block_ids(request.request_id)
            for request in given_up
            if not request.num_computed_tokens
        ]
        return {block_id for table in tables for group in table for block_id in group}

    def drain(self) -> None:
        """Let all requests end, reset, and check that nothing is left."""
        self.run()
        self.check()
        assert self.reset(), "the cache could not be reset although all requests have ended"
        check_drained(self.manager)

    def _watch_progress(self, executed: bool) -> None:
        """Pools hold at least one request of the longest kind, so something must move."""
        self.idle_turns = 0 if executed else self.idle_turns + 1
        if self.idle_turns == _MAX_IDLE_TURNS and self._leave_a_session():
            return
        assert self.idle_turns < _MAX_IDLE_TURNS, f"nothing is scheduled any more of {self.alive}"

    def _leave_a_session(self) -> bool:
        """Let a client go whose session holds memory that others wait for; say if there was one.

        vLLM's own lets sessions wait for each other as well.
        """
        idle = self.idle_sessions()
        if not isinstance(self.manager.coordinator, AscendHybridKVCacheCoordinator):
            idle = [name for name, r in self.scheduler.requests.items() if r.resumable]
        if idle:
            self.abort(idle[:1])
            self.idle_turns = 0
        return bool(idle)

    def _note_hits(self, output: SchedulerOutput) -> None:
        for request in output.scheduled_new_reqs:
            self.hits[request.req_id] = request.num_computed_tokens
