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
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from vllm_ascend.replay.layouts import KVLayout, dsv4_flash_gpu
from vllm_ascend.replay.scheduler import SchedulerOptions, build_scheduler, make_request


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
        mamba_cache_mode="all",
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
# layout, draft tokens, blocks in the pool: small pools preempt.
CASES = [
    ("full", 0, 60),
    ("full", 2, 60),
    ("gemma", 0, 160),
    ("gemma", 2, 400),
    ("window", 0, 28),
    ("mamba", 0, 120),
    ("dsv4-gpu", 0, 260),
    ("dsv4-gpu", 2, 260),
]
STEPS_PER_CASE = 700


def trace(layout: str, num_drafts: int, num_blocks: int, steps: int, seed: int) -> Iterator[str]:
    """Yield one line per step: digests of block ids, hashes, queue order, events and stats."""
    scheduler = build_scheduler(
        LAYOUTS[layout](),
        SchedulerOptions(
            num_blocks=num_blocks,
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=1024,
            num_speculative_tokens=num_drafts,
            enable_kv_cache_events=True,
        ),
    )
    rng = random.Random(f"{layout}-{num_drafts}-{seed}")
    prefixes = [[rng.randrange(50) for _ in range(600)] for _ in range(3)]
    for step in range(steps):
        _maybe_add_request(scheduler, rng, prefixes, step)
        if step % 97 == 96 and scheduler.requests:
            _abort(scheduler, rng)
        if step % 150 == 149:
            scheduler.reset_prefix_cache()
        output = scheduler.schedule()
        drafts = _execute(scheduler, output, rng, num_drafts)
        yield json.dumps([step, _describe(scheduler, output), _count(output)])
        if drafts is not None:
            scheduler.update_draft_token_ids(drafts)


def _maybe_add_request(scheduler: Scheduler, rng: random.Random, prefixes, step: int) -> None:
    if len(scheduler.requests) >= 10 or rng.random() < 0.4:
        return
    shared = rng.randrange(0, 500)
    prompt = rng.choice(prefixes)[:shared] + [
        rng.randrange(50) for _ in range(rng.randrange(1, 90))
    ]
    scheduler.add_request(
        make_request(
            scheduler,
            f"r{step}",
            prompt,
            rng.randrange(1, 60),
            cache_salt=rng.choice([None, None, "tenant"]),
        )
    )


def _abort(scheduler: Scheduler, rng: random.Random) -> None:
    from vllm.v1.request import RequestStatus

    victim = rng.choice(sorted(scheduler.requests))
    scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)


def _execute(
    scheduler: Scheduler, output: SchedulerOutput, rng: random.Random, num_drafts: int
) -> DraftTokenIds | None:
    """Sample random tokens, accept a random number of drafts, propose new ones."""
    ids = list(output.num_scheduled_tokens)
    sampled: list[list[int]] = []
    for name in ids:
        request = scheduler.requests[name]
        drafts = output.scheduled_spec_decode_tokens.get(name, [])
        prefilling = request.num_computed_tokens - len(drafts) < request.num_tokens
        accepted = rng.randrange(len(drafts) + 1)
        sampled.append([] if prefilling else [*drafts[:accepted], rng.randrange(50)])
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: i for i, name in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    scheduler.update_from_output(output, result)
    if not num_drafts:
        return None
    proposals = [[rng.randrange(50) for _ in range(num_drafts)] for _ in ids]
    return DraftTokenIds(req_ids=ids, draft_token_ids=proposals)


def _describe(scheduler: Scheduler, output: SchedulerOutput) -> list[object]:
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
    return [_digest(part) for part in (scheduled, queue, hashes, stats, RECORDED_EVENTS)]


def _count(output: SchedulerOutput) -> dict[str, int]:
    """Count what the comparison must not lack, and forget the step's events."""
    num_events = len(RECORDED_EVENTS)
    RECORDED_EVENTS.clear()
    return {
        "hits": sum(request.num_computed_tokens for request in output.scheduled_new_reqs),
        "preempted": len(output.preempted_req_ids or ()),
        "events": num_events,
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


def main(mode: str, output: str, steps: int = STEPS_PER_CASE) -> None:
    """Write the trace of every case to ``output``."""
    if mode == "patched":
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    _record_events()
    with Path(output).open("w") as file:
        for layout, num_drafts, num_blocks in CASES:
            for line in trace(layout, num_drafts, num_blocks, steps, seed=7):
                file.write(f"{layout}/{num_drafts} {line}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
