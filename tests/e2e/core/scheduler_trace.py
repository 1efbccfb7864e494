# SPDX-License-Identifier: Apache-2.0
"""Drive a scheduler through a seeded workload and write down everything it does, step by step.

Run as a program, once with and once without our patches; both must write the same lines::

    python -m tests.e2e.core.scheduler_trace {stock,patched} OUTPUT
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import torch
from vllm.config import KVTransferConfig, LoRAConfig, VllmConfig
from vllm.config.cache import MambaCacheMode
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from vllm_ascend.dry_run import scheduler as replay_scheduler
from vllm_ascend.dry_run.layouts import KVLayout, dsv4_flash_gpu
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
from vllm_ascend.releases import running_release

_HOLDERS = running_release().queue_of_holders
# Later releases have no mode that caches every block.
_MAMBA_MODE = "all" if "all" in get_args(MambaCacheMode) else "align"


def _attention(block_size: int, window: int | None = None):
    shape = dict(block_size=block_size, num_kv_heads=1, head_size=16, dtype=torch.bfloat16)
    if window is None:
        return FullAttentionSpec(**shape)
    return SlidingWindowSpec(**shape, sliding_window=window)


def _mamba(block_size: int) -> MambaSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((16, 4),),
        dtypes=(torch.float32,),
        page_size_padded=2 * block_size * 16 * 2,
        mamba_cache_mode=_MAMBA_MODE,
    )


LAYOUTS: dict[str, Callable[[], KVLayout]] = {
    "full": lambda: KVLayout("full", 16, {f"l{i}": _attention(16) for i in range(2)}),
    "gemma": lambda: KVLayout(
        "gemma", 16, {f"l{i}": _attention(16, 48 if i % 6 < 5 else None) for i in range(12)}
    ),
    "window": lambda: KVLayout("window", 16, {f"l{i}": _attention(16, 40) for i in range(2)}),
    "mamba": lambda: KVLayout("mamba", 16, {"l0": _mamba(16), "l1": _attention(16)}),
    "dsv4-gpu": lambda: dsv4_flash_gpu(compress_ratios=(0, 4, 128, 4)),
}


@dataclass(frozen=True)
class TraceCase:
    """One workload.

    Attributes:
        num_blocks: Of the pool; small ones preempt.
        failures: Share of a connector's loads that fail; ``None`` for no connector.
        load_policy: vLLM's ``kv_load_failure_policy``.
    """

    layout: str
    num_blocks: int
    num_drafts: int = 0
    is_async: bool = False
    by_priority: bool = False
    with_lora: bool = False
    failures: float | None = None
    load_policy: str = "recompute"
    num_steps: int = 700

    def __str__(self) -> str:
        flags = {
            "async": self.is_async,
            "priority": self.by_priority,
            "lora": self.with_lora,
            f"connector-{self.load_policy}": self.failures is not None,
        }
        return "/".join([self.layout, str(self.num_drafts), *(f for f, on in flags.items() if on)])


CASES = (
    TraceCase("full", 60),
    TraceCase("full", 60, num_drafts=2),
    TraceCase("gemma", 160),
    TraceCase("gemma", 400, num_drafts=2),
    TraceCase("window", 28),
    TraceCase("mamba", 120),
    TraceCase("dsv4-gpu", 260),
    TraceCase("dsv4-gpu", 260, num_drafts=2),
    TraceCase("gemma", 160, is_async=True, num_steps=250),
    TraceCase("gemma", 145, by_priority=True, num_steps=250),
    TraceCase("dsv4-gpu", 240, with_lora=True, is_async=True, by_priority=True, num_steps=250),
    TraceCase("full", 60, failures=0.4, num_steps=250),
    TraceCase("full", 60, failures=0.4, load_policy="fail", is_async=True, num_steps=250),
    # vLLM cannot say which of several groups' loads have failed.
    TraceCase("gemma", 200, failures=0.0, is_async=True, with_lora=True, num_steps=250),
    TraceCase("gemma", 200, failures=0.0, by_priority=True, num_steps=250),
)


def build(case: TraceCase) -> Scheduler:
    """Return a scheduler for a case; vLLM's configuration is completed before it is built."""
    make_config = replay_scheduler._vllm_config

    def completed(*args: Any) -> VllmConfig:
        config = make_config(*args)
        if case.with_lora:
            config.lora_config = LoRAConfig(max_loras=1, max_lora_rank=8)
        if case.failures is not None:
            config.kv_transfer_config = KVTransferConfig(
                kv_connector="TraceConnector",
                kv_connector_module_path="tests.e2e.core.trace_connector",
                kv_role="kv_both",
                kv_load_failure_policy=case.load_policy,
                kv_connector_extra_config={"failures": case.failures},
            )
        return config

    options = SchedulerOptions(
        num_blocks=case.num_blocks,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=1024,
        num_speculative_tokens=case.num_drafts,
        async_scheduling=case.is_async,
        policy="priority" if case.by_priority else "fcfs",
        enable_kv_cache_events=True,
    )
    with mock.patch.object(replay_scheduler, "_vllm_config", completed):
        return build_scheduler(LAYOUTS[case.layout](), options)


def trace(case: TraceCase, seed: int) -> Iterator[str]:
    """Yield one line per step: digests of block ids, hashes, queue order, outputs and events."""
    scheduler = build(case)
    rng = random.Random(f"{case.layout}-{case.num_drafts}-{seed}")
    prefixes = [[rng.randrange(50) for _ in range(600)] for _ in range(3)]
    in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
    for step in range(case.num_steps):
        _maybe_add_request(scheduler, rng, prefixes, step, case)
        if step % 97 == 96 and scheduler.requests:
            _abort(scheduler, rng)
        if step % 150 == 149:
            scheduler.reset_prefix_cache()
        output = scheduler.schedule()
        in_flight.append((output, _execute(scheduler, output, rng, case)))
        returned = []
        while len(in_flight) > case.is_async:
            returned.append(_confirm(scheduler, *in_flight.popleft()))
        yield json.dumps([step, _describe(scheduler, output, returned), _count(scheduler, output)])
        if case.num_drafts:
            scheduler.update_draft_token_ids(_propose(output, rng, case.num_drafts))


def _maybe_add_request(
    scheduler: Scheduler, rng: random.Random, prefixes, step: int, case: TraceCase
) -> None:
    if len(scheduler.requests) >= 10 or rng.random() < 0.4:
        return
    shared = rng.randrange(0, 500)
    prompt = rng.choice(prefixes)[:shared] + [
        rng.randrange(50) for _ in range(rng.randrange(1, 90))
    ]
    adapter = rng.randrange(3) if case.with_lora else 0
    scheduler.add_request(
        make_request(
            scheduler,
            f"r{step}",
            prompt,
            rng.randrange(1, 60),
            cache_salt=rng.choice([None, None, "tenant"]),
            lora=LoRARequest(f"adapter-{adapter}", adapter, "/nowhere") if adapter else None,
            arrival_time=float(step),
            priority=rng.randrange(3) if case.by_priority else 0,
        )
    )


def _abort(scheduler: Scheduler, rng: random.Random) -> None:
    from vllm.v1.request import RequestStatus

    victim = rng.choice(sorted(scheduler.requests))
    scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)


def _execute(
    scheduler: Scheduler, output: SchedulerOutput, rng: random.Random, case: TraceCase
) -> ModelRunnerOutput:
    """Sample random tokens, and accept a random number of drafts."""
    ids = list(output.num_scheduled_tokens)
    sampled: list[list[int]] = []
    for name in ids:
        drafts = output.scheduled_spec_decode_tokens.get(name, [])
        accepted = rng.randrange(len(drafts) + 1)
        is_prefill = scheduler.requests[name].is_prefill_chunk
        sampled.append([] if is_prefill else [*drafts[:accepted], rng.randrange(50)])
    connector = scheduler.connector
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: i for i, name in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=connector.end_of_step() if connector is not None else None,
    )


def _confirm(
    scheduler: Scheduler, output: SchedulerOutput, result: ModelRunnerOutput
) -> list[object]:
    """Process a step's output; return what clients are told."""
    returned = scheduler.update_from_output(output, result)
    return [
        (client, [(o.request_id, o.new_token_ids, o.finish_reason) for o in outputs.outputs])
        for client, outputs in sorted(returned.items())
    ]


def _propose(output: SchedulerOutput, rng: random.Random, num_drafts: int) -> DraftTokenIds:
    ids = list(output.num_scheduled_tokens)
    proposals = [[rng.randrange(50) for _ in range(num_drafts)] for _ in ids]
    return DraftTokenIds(req_ids=ids, draft_token_ids=proposals)


def _describe(
    scheduler: Scheduler, output: SchedulerOutput, returned: list[object]
) -> list[object]:
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    cached = output.scheduled_cached_reqs
    scheduled = [
        [(r.req_id, r.block_ids, r.num_computed_tokens) for r in output.scheduled_new_reqs],
        list(zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True)),
        sorted(output.num_scheduled_tokens.items()),
        sorted(output.preempted_req_ids or ()),
        sorted(output.finished_req_ids),
        output.new_block_ids_to_zero,
    ]
    queue = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    hashes = [(b.block_id, b.ref_cnt, b.block_hash) for b in pool.blocks]
    stats = manager.make_prefix_cache_stats()
    requests = [
        [request.request_id for request in queue]
        for queue in (scheduler.running, scheduler.waiting, getattr(scheduler, _HOLDERS))
    ]
    parts = (scheduled, queue, hashes, stats, RECORDED_EVENTS, requests, returned)
    return [_digest(part) for part in parts]


def _count(scheduler: Scheduler, output: SchedulerOutput) -> dict[str, int]:
    """Count what the comparison must not lack, and forget the step's events."""
    connector = scheduler.connector
    num_events = len(RECORDED_EVENTS)
    RECORDED_EVENTS.clear()
    return {
        "hits": sum(request.num_computed_tokens for request in output.scheduled_new_reqs),
        "preempted": len(output.preempted_req_ids or ()),
        "events": num_events,
        "loads": connector.num_loads if connector is not None else 0,
        "failed": connector.num_failed if connector is not None else 0,
    }


# The events of the current step: update_from_output takes them from the pool and publishes them,
# and the null publisher keeps none.
RECORDED_EVENTS: list[str] = []


def _record_events() -> None:
    from vllm.v1.core.block_pool import BlockPool

    take = BlockPool.take_events

    def take_and_record(self: BlockPool):
        events = take(self)
        RECORDED_EVENTS.extend(repr(event) for event in events)
        return events

    BlockPool.take_events = take_and_record


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def main(mode: str, output: str) -> None:
    """Write the trace of every case to ``output``."""
    if mode == "patched":
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    _record_events()
    with Path(output).open("w") as file:
        for case in CASES:
            for line in trace(case, seed=7):
                file.write(f"{case} {line}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
