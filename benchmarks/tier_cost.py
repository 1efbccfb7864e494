# SPDX-License-Identifier: Apache-2.0
"""What a tier in host memory costs the scheduler's thread, with 64 running requests.

    python -m benchmarks.tier_cost [--requests 64] [--steps 3000] [--repeats 4] [--disk-gib 1000]

Two schedulers in one process, every switch on, serve the same traffic, a step of the one beside the
same step of the other: decodes, and for each request that ends a new one of 8,000 tokens of its
own, so that nothing is hit. One of them has a tier, and below it a modelled disk if one is asked
for: it moves no bytes, but the times hold its books, which are kept when a write is ordered.
Compared are the CPU times of each pair of steps.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks.paired_steps import SWITCHES, in_turns, paired_arguments, timed_step

PARTS = ("schedule", "update_from_output")
_WARM_UP_STEPS = 1000
_PROMPT_TOKENS = 8000
_STEP_MS = 50.0  # on the clock of a disk
_DECODES, _PREFILLS = "steps of decodes alone", "steps with a prompt"


def build(num_requests: int, *, has_tier: bool, disk_gib: float | None):
    """Return a scheduler of DeepSeek-V4-Flash's layout, what executes its steps, and its clock."""
    import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend_evaluation.replay.runs.child import (
        build_job_scheduler,
        make_worker,
        set_up_disk,
    )
    from vllm_ascend_evaluation.replay.runs.clock import VirtualClock
    from vllm_ascend_evaluation.replay.runs.job import CLOSED_LOOP, Job
    from vllm_ascend_evaluation.replay.sources import WorkloadSource
    from vllm_ascend_evaluation.replay.variants import ASCEND_LAYOUT

    job = Job(
        variant="best",
        patched=True,
        environment={},
        layout=ASCEND_LAYOUT,
        block_size=128,
        kv_memory_bytes=16 << 30,
        workload=WorkloadSource("W1"),
        arrivals=CLOSED_LOOP,
        cost_model=None,
        max_num_seqs=num_requests,
        max_num_batched_tokens=8192,
        max_model_len=20_000,
        verify=False,
        tier_gib=16 if has_tier else None,
        disk_gib=disk_gib if has_tier else None,
    )
    clock = VirtualClock()
    set_up_disk(job, clock)
    scheduler = build_job_scheduler(job)
    return scheduler, make_worker(job, scheduler), clock


def timed_steps(scheduler, worker, clock, num_requests: int) -> Iterator[tuple[str, int, int]]:
    """Step for ever; yield the kind of step and the nanoseconds of its two parts."""
    from vllm_ascend.dry_run.scheduler import make_request

    rng, number = random.Random(0), 0
    while True:
        while len(scheduler.requests) < num_requests:
            number += 1
            prompt = [rng.randrange(100_000) for _ in range(_PROMPT_TOKENS)]
            request = make_request(scheduler, f"r{number}", prompt, rng.randrange(200, 800))
            scheduler.add_request(request)
        output, scheduled, updated = timed_step(scheduler, worker)
        clock.move_to(clock.now_ms + _STEP_MS)
        kind = _PREFILLS if output.total_num_scheduled_tokens > num_requests else _DECODES
        yield kind, scheduled, updated


Rows = dict[str, list[tuple[tuple[int, int], ...]]]


def measure(num_requests: int, num_steps: int, disk_gib: float | None, *, off_first: bool) -> Rows:
    """Return the times of every pair of steps, by kind of step: (off, on) of each part.

    Args:
        num_requests: That run.
        num_steps: Pairs that are measured.
        disk_gib: Below the tier, in GiB; ``None``: there is no disk.
        off_first: Build the scheduler without a tier first. Where its objects lie makes a
            difference of its own, so half of the repeats should.
    """
    built = {
        tier: build(num_requests, has_tier=tier, disk_gib=disk_gib)
        for tier in (not off_first, off_first)
    }
    pair = (timed_steps(*built[has_tier], num_requests) for has_tier in (False, True))
    rows: Rows = {_DECODES: [], _PREFILLS: []}
    for off, on in in_turns(*pair, num_steps=num_steps, num_warm_up=_WARM_UP_STEPS):
        if off[0] == on[0]:
            rows[off[0]].append(tuple(zip(off[1:], on[1:], strict=True)))
    return rows


def show(rows: Rows, console: Console) -> None:
    """Print medians by kind of step, and the ratios."""
    for kind, pairs in rows.items():
        table = Table(f"{kind} ({len(pairs):,}), p50 in us", "off", "on", "ratio", box=None)
        for i, part in enumerate(PARTS):
            off, on = (statistics.median(pair[i][side] for pair in pairs) / 1e3 for side in (0, 1))
            table.add_row(f"{part}()", f"{off:.1f}", f"{on:.1f}", f"{on / off:.3f}")
        console.print(table)


def main() -> None:
    """Measure and print."""
    parser = paired_arguments(__doc__.splitlines()[0])
    parser.add_argument("--disk-gib", type=float, help="a disk below the tier (none)")
    args = parser.parse_args()
    os.environ.update(SWITCHES)
    rows: Rows = {_DECODES: [], _PREFILLS: []}
    for i in range(args.repeats):
        measured = measure(args.requests, args.steps, args.disk_gib, off_first=i % 2 == 0)
        for kind, pairs in measured.items():
            rows[kind] += pairs
    console = Console()
    console.print(f"{args.requests} running requests, prompts of {_PROMPT_TOKENS:,} tokens")
    show(rows, console)


if __name__ == "__main__":
    main()
