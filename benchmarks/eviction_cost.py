# SPDX-License-Identifier: Apache-2.0
"""What protecting returning prompts costs the scheduler, with 64 running requests and a full cache.

    python -m benchmarks.eviction_cost [--requests 64] [--steps 3000] [--repeats 4]

Two schedulers in one process serve the same traffic under the profile ``best``, a step of the one
beside the same step of the other: one with ``VLLM_ASCEND_EVICTION=lru``, one with ``protect``. A
third of the prompts, of 2,000 to 12,000 tokens, is one that runs already and comes again: both
orders hit it, so that both do the same steps. The cache is full before anything is
measured, and every prompt takes the memory of others. What is compared is the CPU time of
``schedule()`` and of ``update_from_output()``, in which requests end. What is done once per prompt
shows in the means.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator
from itertools import count, product

from rich.console import Console
from rich.table import Table

from benchmarks import paired_steps
from benchmarks.paired_steps import SWITCHES, in_turns, paired_arguments, timed_step

_ORDER = "VLLM_ASCEND_EVICTION"
ORDERS = ("lru", "protect")
_WARM_UP_STEPS = 2000
PARTS = ("schedule", "update_from_output")
_KINDS = _DECODES, _PREFILLS, _ALL = "decodes alone", "with prefill", "all"
_KV_CACHE_BYTES = 16 << 30


def build(num_requests: int, order: str):
    """Return a scheduler with an eviction order."""
    # Admission remembers names that were given up, too.
    environment = {_ORDER: order, "VLLM_ASCEND_ADMISSION": "fcfs"}
    sizes = {"kv_memory_bytes": _KV_CACHE_BYTES, "max_model_len": 20_000}
    return paired_steps.build(environment, max_num_seqs=num_requests, **sizes)


def timed_steps(scheduler, num_requests: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Step for ever; yield how many tokens are scheduled, and the nanoseconds of the two parts."""
    from vllm_ascend.dry_run.scheduler import make_request
    from vllm_ascend.dry_run.worker import SamplingWorker

    rng = random.Random(0)
    worker = SamplingWorker(scheduler)
    for number in count():
        while len(scheduler.requests) < num_requests:
            prompts = [request.prompt_token_ids for request in scheduler.requests.values()]
            prompt = [rng.randrange(100_000) for _ in range(rng.randrange(2000, 12_000))]
            if prompts and rng.random() < 1 / 3:
                prompt = rng.choice(prompts)
            name = f"r{number}-{len(scheduler.requests)}"
            request = make_request(scheduler, name, prompt, max_tokens=rng.randrange(200, 600))
            scheduler.add_request(request)
        output, scheduled, updated = timed_step(scheduler, worker)
        yield output.total_num_scheduled_tokens, (scheduled, updated)


Pairs = dict[tuple[str, str], list[tuple[int, int]]]


def measure(num_requests: int, num_steps: int, *, lru_first: bool) -> Pairs:
    """Return the times of every pair of steps, by kind of step: (lru, protect).

    Args:
        lru_first: Build the scheduler under LRU first. Where its objects lie makes a difference
            of its own, so half of the repeats should.
    """
    schedulers = {o: build(num_requests, o) for o in (ORDERS if lru_first else ORDERS[::-1])}
    steps = [timed_steps(schedulers[order], num_requests) for order in ORDERS]
    pairs: Pairs = {key: [] for key in product(PARTS, _KINDS)}
    for one, two in in_turns(*steps, num_steps=num_steps, num_warm_up=_WARM_UP_STEPS):
        (num_tokens, lru_times), (same, protect_times) = one, two
        assert num_tokens == same, "what runs is hit with either order"
        kind = _DECODES if num_tokens <= num_requests else _PREFILLS
        for part, *times in zip(PARTS, lru_times, protect_times, strict=True):
            pairs[part, kind].append(tuple(times))
            pairs[part, _ALL].append(tuple(times))
    return pairs


def show(repeats: list[Pairs], console: Console) -> None:
    """Print medians and means by kind of step, in microseconds, and their ratios."""
    for part in PARTS:
        table = Table(f"{part}(), us", "steps", "", *ORDERS, "ratio", box=None)
        for kind in _KINDS:
            pairs = [pair for repeat in repeats for pair in repeat[part, kind]]
            if not pairs:  # few steps
                continue
            for name, average in (("p50", statistics.median), ("mean", statistics.fmean)):
                lru, protect = (average(times) / 1e3 for times in zip(*pairs, strict=True))
                numbers = (f"{lru:,.1f}", f"{protect:,.1f}", f"{protect / lru:.3f}")
                table.add_row(kind, f"{len(pairs):,}", name, *numbers)
        console.print(table)


def main() -> None:
    """Measure and print."""
    parser = paired_arguments(__doc__.splitlines()[0])
    args = parser.parse_args()
    os.environ.update(SWITCHES)
    console = Console()
    repeats = [
        measure(args.requests, args.steps, lru_first=i % 2 == 0) for i in range(args.repeats)
    ]
    console.print(f"{args.requests} running requests, profile best")
    show(repeats, console)


if __name__ == "__main__":
    main()
