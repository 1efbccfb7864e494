# SPDX-License-Identifier: Apache-2.0
"""Counts what happens in a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs

from vllm_ascend_evaluation.replay.memory_use import MemoryUse
from vllm_ascend_evaluation.replay.prefill_work import prefill_work
from vllm_ascend_evaluation.replay.results import Percentiles, RunResult, Sample, length_buckets
from vllm_ascend_evaluation.replay.runs.job import TIMESTAMPS, Job
from vllm_ascend_evaluation.replay.runs.sampling import SamplingPlan
from vllm_ascend_evaluation.replay.slo import Slo

if TYPE_CHECKING:
    from vllm_ascend_evaluation.replay.runs.memory_watch import MemoryWatch

_BUCKET_EDGES = (0, 1024, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 1 << 40)


@dataclass
class _Seen:
    prompt_tokens: int
    arrival_ms: float
    hit_tokens: int | None = None
    ttft_ms: float | None = None
    last_ms: float = 0.0
    answer_tokens: int = 0

    @property
    def tpot_ms(self) -> float:
        """Time per token behind the first; 0 if there is none."""
        if self.ttft_ms is None or self.answer_tokens < 2:
            return 0.0
        return (self.last_ms - self.arrival_ms - self.ttft_ms) / (self.answer_tokens - 1)


class Recorder:
    """Collects a run's measurements from the scheduler's outputs and its block pool.

    Counting evictions shadows one method of the pool instance; nothing else is touched.
    """

    def __init__(
        self, scheduler: Scheduler, num_requests: int, *, watches_memory: bool = False
    ) -> None:
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.kv_cache_manager.block_pool
        self._requests: dict[str, _Seen] = {}
        self._schedule_us: list[float] = []
        self._add_request_us: list[float] = []
        self._now_ms = 0.0
        self._samples: list[Sample] = []
        self._last: Sample | None = None
        self._plan = SamplingPlan(num_requests)
        self._peak_used = 0
        self._num_preemptions = 0
        self._num_evicted = 0
        self.num_requests = 0
        self._prompt_tokens = 0
        self._hit_tokens = 0
        self._started = time.perf_counter()
        self._count_evictions()
        self._watches = [_watch(scheduler)] if watches_memory else []

    def _count_evictions(self) -> None:
        evict = self._pool._maybe_evict_cached_block

        def count_and_evict(block) -> bool:
            evicted = evict(block)
            self._num_evicted += evicted
            return evicted

        self._pool._maybe_evict_cached_block = count_and_evict

    def restarted(self, scheduler: Scheduler) -> None:
        """Go on with the engine that has taken the place of the one before."""
        self._scheduler, self._pool = scheduler, scheduler.kv_cache_manager.block_pool
        self._count_evictions()

    def added(self, name: str, prompt_tokens: int, seconds: float, arrival_ms: float) -> None:
        """Note that a request was hashed and enqueued."""
        self._add_request_us.append(seconds * 1e6)
        self._requests[name] = _Seen(prompt_tokens, arrival_ms)
        for watch in self._watches:
            watch.added(name)

    def step(self, output: SchedulerOutput, seconds: float, now_ms: float) -> None:
        """Note what one ``schedule()`` decided."""
        self._schedule_us.append(seconds * 1e6)
        self._now_ms = now_ms
        for watch in self._watches:
            watch.step(output)
        self._num_preemptions += len(output.preempted_req_ids or ())
        self._peak_used = max(self._peak_used, self._num_used)
        for request in output.scheduled_new_reqs:
            seen = self._requests[request.req_id]
            seen.hit_tokens = request.num_computed_tokens
            self.num_requests += 1
            self._prompt_tokens += seen.prompt_tokens
            self._hit_tokens += request.num_computed_tokens
        if self._plan.is_due(len(self._schedule_us), self.num_requests):
            self._samples = [s for s in self._samples if self._plan.keeps(s.step)]
            self._samples.append(self._sample())

    def answered(self, outputs: Iterable[EngineCoreOutputs], now_ms: float) -> None:
        """Note which requests got tokens in a step that ended now."""
        for output in (output for of_client in outputs for output in of_client.outputs):
            if output.new_token_ids:
                seen = self._requests[output.request_id]
                if seen.ttft_ms is None:
                    seen.ttft_ms = now_ms - seen.arrival_ms
                seen.last_ms = now_ms
                seen.answer_tokens += len(output.new_token_ids)

    @property
    def _num_used(self) -> int:
        # -1: the null block is never free and never used.
        return self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()

    def _sample(self) -> Sample:
        idle = self._pool.get_num_free_blocks()
        cached = sum(not b.ref_cnt and b.block_hash is not None for b in self._pool.blocks)
        return Sample(
            step=len(self._schedule_us),
            num_requests=self.num_requests,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            used_blocks=self._num_used,
            cached_blocks=cached,
            scratch_blocks=idle - cached,
        )

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of the requests that started."""
        return self._prompt_tokens

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens of the requests that started which were no hits."""
        return self._prompt_tokens - self._hit_tokens

    @classmethod
    def of_ranks(cls, recorders: Sequence[Recorder]) -> Recorder:
        """Return the first of several ranks' recorders, with the others' measurements added.

        Samples over time are left out but for the last one.
        """
        whole = recorders[0]
        samples = [recorder._sample() for recorder in recorders]
        for other in recorders[1:]:
            whole._requests |= other._requests
            whole._schedule_us += other._schedule_us
            whole._add_request_us += other._add_request_us
            whole._now_ms = max(whole._now_ms, other._now_ms)
            whole._peak_used = max(whole._peak_used, other._peak_used)
            whole._num_preemptions += other._num_preemptions
            whole._num_evicted += other._num_evicted
            whole.num_requests += other.num_requests
            whole._prompt_tokens += other._prompt_tokens
            whole._hit_tokens += other._hit_tokens
            whole._watches += other._watches
        whole._samples = []
        whole._last = Sample(*map(sum, zip(*map(astuple, samples), strict=True)))
        return whole

    def result(self, job: Job, *, complete: bool, violations: list[str]) -> RunResult:
        """Return everything as one record."""
        coordinator = self._scheduler.kv_cache_manager.coordinator
        scheduled = [seen for seen in self._requests.values() if seen.hit_tokens is not None]
        warm = [seen for seen in scheduled if 2 * (seen.hit_tokens or 0) >= seen.prompt_tokens]
        cold = [seen for seen in scheduled if 2 * (seen.hit_tokens or 0) < seen.prompt_tokens]
        return RunResult(
            variant=job.variant,
            settings=dict(job.environment),
            workload=job.workload.source,
            layout=job.layout,
            block_size=job.block_size,
            num_speculative_tokens=job.num_speculative_tokens,
            draft_method=job.draft_method,
            alignment_tokens=getattr(coordinator, "lcm_block_size", self._scheduler.block_size),
            kv_memory_bytes=job.kv_memory_bytes,
            num_blocks=self._pool.num_gpu_blocks,
            bytes_per_block=self._bytes_per_block(),
            num_requests=self.num_requests,
            num_requests_hit=sum(bool(seen.hit_tokens) for seen in scheduled),
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            prompt_work=sum(prefill_work(seen.prompt_tokens) for seen in scheduled),
            hit_work=sum(prefill_work(seen.hit_tokens or 0) for seen in scheduled),
            num_preemptions=self._num_preemptions,
            peak_used_blocks=self._peak_used,
            num_cached_blocks_evicted=self._num_evicted,
            num_steps=len(self._schedule_us),
            seconds=time.perf_counter() - self._started,
            schedule_us=percentiles(self._schedule_us),
            add_request_us=percentiles(self._add_request_us),
            modelled_ttft_ms=_ttft(scheduled) if job.cost_model else None,
            modelled_ttft_hit_ms=_ttft(warm) if job.cost_model and warm else None,
            modelled_ttft_cold_ms=_ttft(cold) if job.cost_model and cold else None,
            modelled_tpot_ms=_tpot(scheduled) if job.cost_model else None,
            modelled_seconds=self._now_ms / 1e3 if job.cost_model else None,
            arrivals_per_second=self._arrivals_per_second() if job.arrivals == TIMESTAMPS else None,
            kept_percent=_kept_percent(scheduled, job.slo) if job.slo else None,
            # The last word is the state at the end, which also the totals describe.
            samples=(*self._samples, self._last or self._sample()),
            buckets=length_buckets(
                ((seen.prompt_tokens, seen.hit_tokens or 0) for seen in scheduled), _BUCKET_EDGES
            ),
            complete=complete,
            violations=tuple(violations),
            verified=job.verify,
            description=job.description,
            memory=self._memory_use(),
        )

    def _arrivals_per_second(self) -> float:
        """Return how many requests came in a second, from the first to the last."""
        times = [seen.arrival_ms for seen in self._requests.values()]
        return 1e3 * (len(times) - 1) / max(max(times) - min(times), 1.0)

    def _memory_use(self) -> MemoryUse | None:
        uses = [watch.use() for watch in self._watches]
        return MemoryUse.of_ranks(uses) if uses else None

    def _bytes_per_block(self) -> int:
        config = self._scheduler.kv_cache_config
        return sum(tensor.size for tensor in config.kv_cache_tensors) // config.num_blocks


def _watch(scheduler: Scheduler) -> MemoryWatch:
    # Not before: what it asks about is not there for stock vLLM.
    from vllm_ascend_evaluation.replay.runs.memory_watch import MemoryWatch

    return MemoryWatch(scheduler)


def _ttft(requests: list[_Seen]) -> Percentiles:
    return percentiles([seen.ttft_ms for seen in requests if seen.ttft_ms is not None])


def _tpot(requests: list[_Seen]) -> Percentiles:
    return percentiles([seen.tpot_ms for seen in requests if seen.answer_tokens > 1])


def _kept_percent(requests: list[_Seen], slo: Slo) -> float:
    """Return how many of all requests were served as promised, in percent."""
    kept = sum(
        slo.is_kept(seen.ttft_ms, seen.tpot_ms) for seen in requests if seen.ttft_ms is not None
    )
    return 100.0 * kept / max(len(requests), 1)


def percentiles(values: Sequence[float]) -> Percentiles:
    """Return percentiles of values; zeros if there are none."""
    return Percentiles(*map(float, np.percentile(values or [0.0], [50, 90, 99])))
