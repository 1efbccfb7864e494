# SPDX-License-Identifier: Apache-2.0
"""What choosing data-parallel ranks by cache costs: a front end's choice, and a rank that tells.

    python -m benchmarks.dp_routing [--requests 64] [--steps 3000] [--repeats 4]

The choice: DeepSeek-V4-Flash's layout, 8 ranks that all have the whole prompt cached, which makes
the longest walk; or nothing cached, and the whole prompt in a tier of their own.

The rank: two schedulers in one process, a step of the one beside the same step of the other; one of
them tells. CPU times are compared.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from itertools import product

from rich.console import Console
from rich.table import Table

from benchmarks import paired_steps
from benchmarks.paired_steps import SWITCHES, in_turns, paired_arguments

PROMPTS = {"8K": 1 << 13, "128K": 1 << 17, "1M": 1 << 20}
_NUM_RANKS = 8
_WARM_UP_STEPS = 1000


def build(*, tells: bool, num_requests: int = 64, max_model_len: int = 20_000):
    """Return a scheduler with every switch on."""
    sizes = {"num_blocks": 60_000, "max_num_seqs": num_requests, "max_model_len": max_model_len}
    return paired_steps.build({}, **sizes, is_data_parallel=tells)


def news_of(prompt: list[int]):
    """Return all that a rank has cached once it has answered one prompt."""
    from vllm_ascend.dry_run.scheduler import make_request
    from vllm_ascend.dry_run.worker import SamplingWorker

    scheduler = build(tells=True, max_model_len=len(prompt) + 1024)
    worker = SamplingWorker(scheduler)
    scheduler.add_request(make_request(scheduler, "0", prompt, 2))
    while scheduler.requests:
        output = scheduler.schedule()
        scheduler.update_from_output(output, worker.execute(output))
    log = scheduler.kv_cache_manager.block_pool.event_log
    log.take_news()
    return log.all_news()


def moved_to_tier(news):
    """Return news by which a tier has what the cache had."""
    from msgspec.structs import replace

    from vllm_ascend.dp_routing.news import TIER_ROWS, TIER_TAILS, TierRules

    prefix = next(i for i, rule in enumerate(news.rules.groups) if rule.rule == "prefix")
    names = next(stored for group, stored, _ in news.changes if group == prefix)
    tier = TierRules(128, 0, 0, has_tails=True, is_shared=False)
    changes = ((TIER_ROWS, names, b""), (TIER_TAILS, names, b""))
    return replace(news, changes=changes, rules=replace(news.rules, tier=tier))


def time_choices(
    num_tokens: int, *, in_tier: bool = False, num_choices: int = 31
) -> tuple[float, float, int]:
    """Return the CPU milliseconds of hashing and of choosing (medians), and the hit found."""
    from vllm.v1.engine import EngineCoreRequest

    from vllm_ascend.dp_routing.router import Router

    rng = random.Random(num_tokens)
    prompt = [rng.randrange(129_280) for _ in range(num_tokens)]
    router, news = Router(_NUM_RANKS), news_of(prompt)
    if in_tier:
        news = moved_to_tier(news)
    for rank in range(_NUM_RANKS):
        router.hear(rank, news)
    hashing, choosing = [], []
    for number in range(num_choices):
        request = EngineCoreRequest(str(number), prompt, None, None, None, 0.0, None, None, None)
        start = time.thread_time()
        names = router.prompt_of(request)
        middle = time.thread_time()
        router.choose(str(number), names, [[0, 0]] * _NUM_RANKS)
        end = time.thread_time()
        router.finished(str(number))
        hashing.append((middle - start) * 1e3)
        choosing.append((end - middle) * 1e3)
    hits = [cached.hit for cached in router.index.look_up(names.names, num_tokens)]
    hit = router.index.with_tier(names.names, num_tokens, hits)[0]
    return statistics.median(hashing), statistics.median(choosing), hit


def timed_steps(scheduler, num_requests: int) -> Iterator[tuple[int, int, int]]:
    """Step for ever; yield the nanoseconds of schedule(), of telling, and the bytes told."""
    from vllm_ascend.dp_routing.news import encode_news
    from vllm_ascend.dry_run.scheduler import make_request
    from vllm_ascend.dry_run.worker import SamplingWorker

    rng = random.Random(0)
    shared = [rng.randrange(100_000) for _ in range(900)]
    worker, number = SamplingWorker(scheduler), 0
    log = scheduler.kv_cache_manager.block_pool.event_log
    while True:
        while len(scheduler.requests) < num_requests:
            prompt = shared[: rng.randrange(900)] + [rng.randrange(100_000) for _ in range(100)]
            number += 1
            request = make_request(scheduler, str(number), prompt, rng.randrange(200, 800))
            scheduler.add_request(request)
        start = time.thread_time_ns()
        output = scheduler.schedule()
        scheduled = time.thread_time_ns() - start
        scheduler.update_from_output(output, worker.execute(output))
        start, told = time.thread_time_ns(), 0
        if log is not None and (news := log.take_news()) is not None:
            told = len(encode_news(news))
        yield scheduled, time.thread_time_ns() - start, told


def measure(
    num_requests: int, num_steps: int, *, off_first: bool
) -> list[tuple[int, int, int, int]]:
    """Return (schedule() without, with telling, telling itself, bytes) of every pair of steps.

    Args:
        off_first: Build the scheduler that tells nothing first: where its objects lie makes a
            difference of its own.
    """
    order = (False, True) if off_first else (True, False)
    built = {tells: build(tells=tells, num_requests=num_requests) for tells in order}
    pair = (timed_steps(built[False], num_requests), timed_steps(built[True], num_requests))
    turns = in_turns(*pair, num_steps=num_steps, num_warm_up=_WARM_UP_STEPS)
    return [(off[0], on[0], on[1], on[2]) for off, on in turns]


def main() -> None:
    """Measure and print."""
    args = paired_arguments(__doc__.splitlines()[0]).parse_args()
    os.environ.update({**SWITCHES, "VLLM_ASCEND_DP_ROUTING": "cache"})
    console = Console()
    columns = ("prompt", "where it is", "hashing, ms", "choice, ms", "together, ms", "hit")
    table = Table(*columns, box=None)
    for (name, num_tokens), in_tier in product(PROMPTS.items(), (False, True)):
        hashing, choosing, hit = time_choices(num_tokens, in_tier=in_tier)
        numbers = (f"{hashing:.3f}", f"{choosing:.3f}", f"{hashing + choosing:.3f}", f"{hit:,}")
        table.add_row(name, "tier" if in_tier else "cache", *numbers)
    console.print(table)
    rows = [
        row
        for i in range(args.repeats)
        for row in measure(args.requests, args.steps, off_first=i % 2 == 0)
    ]
    off, on, telling, told = (statistics.median(column) for column in zip(*rows, strict=True))
    mean = statistics.fmean(row[3] for row in rows)
    console.print(
        f"schedule() p50 with {args.requests} running requests: {off / 1e3:.1f} us, of a rank that "
        f"tells {on / 1e3:.1f} us ({on / off:.3f}); telling {telling / 1e3:.1f} us a step, "
        f"{told:.0f} bytes (p50), {mean:.0f} bytes (mean)"
    )


if __name__ == "__main__":
    main()
