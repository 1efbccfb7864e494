# SPDX-License-Identifier: Apache-2.0
"""What counting and telling cost the scheduler's thread, with 64 running requests.

    python -m benchmarks.metrics_cost [--requests 64] [--steps 3000] [--repeats 4]

Two schedulers in one process, every switch on, serve the same traffic, a step of the one beside the
same step of the other: decodes, and for each request that ends a new one of up to 1,000 tokens with
a shared prefix. From one of them everything that counts was taken out. What is compared are the CPU
times of each pair of steps, so that neither traffic nor a busy machine makes a difference: of
schedule(), where things are counted, and of make_stats(), where they are collected and which is not
part of schedule().
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from benchmarks import paired_steps
from benchmarks.paired_steps import SWITCHES, in_turns, paired_arguments

PARTS = ("schedule", "make_stats")
_WARM_UP_STEPS = 1000
_LOOK_UPS = "steps with a new request"
_DECODES = "steps of decodes alone"


def build(num_requests: int):
    """Return a scheduler with every switch on."""
    return paired_steps.build(
        {}, num_blocks=60_000, max_num_seqs=num_requests, max_model_len=20_000
    )


def take_counting_out(scheduler) -> None:
    """Make a scheduler do what it did before anything was counted."""
    from vllm_ascend.core.pool.free_queue import TieredFreeQueue

    class UncountedQueue(TieredFreeQueue):
        def popleft_n(self, n: int):
            assert self.num_free_blocks >= n
            self.num_free_blocks -= n
            taken: list = []
            for tier in self.tiers:
                wanted = min(n - len(taken), tier.num_free_blocks)
                if wanted:
                    taken += tier.popleft_n(wanted)
            return taken

    coordinator = scheduler.kv_cache_manager.coordinator
    coordinator.block_pool.free_block_queue.__class__ = UncountedQueue
    lookup = coordinator.lookup

    def find_longest_cache_hit(block_hashes, max_cache_hit_length):
        hit = lookup.find(block_hashes, max_cache_hit_length)
        coordinator.note_hit(lookup.request, hit)
        return hit.blocks, hit.tokens

    coordinator.find_longest_cache_hit = find_longest_cache_hit
    coordinator._note_start = lambda *_: None
    coordinator.tails._count = lambda *_: None
    coordinator.take_stats = lambda: None


def timed_steps(scheduler, num_requests: int) -> Iterator[tuple[str, int, int]]:
    """Step for ever; yield the kind of step and the nanoseconds of its two parts."""
    from vllm_ascend.dry_run.scheduler import make_request
    from vllm_ascend.dry_run.worker import SamplingWorker

    rng = random.Random(0)
    shared = [rng.randrange(100_000) for _ in range(900)]
    make_stats, took = scheduler.make_stats, [0]

    def timed_make_stats(*args):
        start = time.thread_time_ns()
        stats = make_stats(*args)
        took[0] = time.thread_time_ns() - start
        return stats

    scheduler.make_stats = timed_make_stats
    worker = SamplingWorker(scheduler)
    for number in itertools.count():
        kind = _DECODES
        while len(scheduler.requests) < num_requests:
            kind = _LOOK_UPS
            prompt = shared[: rng.randrange(900)] + [rng.randrange(100_000) for _ in range(100)]
            name = f"r{number}-{len(scheduler.requests)}"
            request = make_request(scheduler, name, prompt, max_tokens=rng.randrange(200, 800))
            scheduler.add_request(request)
        start = time.thread_time_ns()
        output = scheduler.schedule()
        elapsed = time.thread_time_ns() - start
        scheduler.update_from_output(output, worker.execute(output))
        yield kind, elapsed, took[0]


Rows = dict[str, list[dict[str, tuple[int, int]]]]


def measure(num_requests: int, num_steps: int, *, off_first: bool) -> Rows:
    """Return the times of every pair of steps, by kind of step: part -> (off, on).

    Args:
        off_first: Build the scheduler without counting first. Where its objects lie makes a
            difference of its own, so half of the repeats should.
    """
    schedulers = [build(num_requests) for _ in range(2)]
    off, on = schedulers if off_first else schedulers[::-1]
    take_counting_out(off)
    pair = (timed_steps(off, num_requests), timed_steps(on, num_requests))
    rows: Rows = {_DECODES: [], _LOOK_UPS: []}
    for one, two in in_turns(*pair, num_steps=num_steps, num_warm_up=_WARM_UP_STEPS):
        (kind, *off_times), (_, *on_times) = one, two
        rows[kind].append(dict(zip(PARTS, zip(off_times, on_times, strict=True), strict=True)))
    return rows


def show(repeats: list[Rows], console: Console) -> None:
    """Print medians by kind of step, and what the metrics cost relative to schedule()."""
    for kind in (_DECODES, _LOOK_UPS):
        pairs = [pair for rows in repeats for pair in rows[kind]]
        table = Table(f"{kind} ({len(pairs):,}), p50 in us", "off", "on", "difference", box=None)
        added = 0.0
        for part in PARTS:
            off, on = (statistics.median(pair[part][i] for pair in pairs) / 1e3 for i in (0, 1))
            difference = statistics.fmean(_median_difference(rows[kind], part) for rows in repeats)
            added += difference
            table.add_row(f"{part}()", f"{off:.1f}", f"{on:.1f}", f"{difference:+.2f}")
        schedule = statistics.median(pair["schedule"][0] for pair in pairs) / 1e3
        console.print(table)
        console.print(f"cost: {added:+.2f} us, {100 * added / schedule:+.2f} % of schedule()\n")


def _median_difference(pairs: list[dict[str, tuple[int, int]]], part: str) -> float:
    """Return how much longer a part takes with metrics, in microseconds."""
    return statistics.median(pair[part][1] - pair[part][0] for pair in pairs) / 1e3


def main() -> None:
    """Measure and print."""
    args = paired_arguments(__doc__.splitlines()[0]).parse_args()
    os.environ.update(SWITCHES)
    console = Console()
    repeats = [
        measure(args.requests, args.steps, off_first=i % 2 == 0) for i in range(args.repeats)
    ]
    console.print(f"{args.requests} running requests")
    show(repeats, console)


if __name__ == "__main__":
    main()
