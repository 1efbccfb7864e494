# SPDX-License-Identifier: Apache-2.0
"""What counting and telling cost the scheduler's thread, with 64 running requests.

    python -m benchmarks.metrics_cost [--requests 64] [--pairs 3] [--rounds 6] [--against CHECKOUT]

Two processes, every switch on, serve the same traffic in alternating blocks of steps: decodes, and
a new request of 1,000 tokens with a shared prefix for each one that ends. One of them has its
metrics off. Off means that nothing is collected and told; the increments stay. With ``--against``
it runs another checkout of this project instead, one without any counting.

Times are CPU times of the thread, so that a busy machine does not blur them: of schedule(), and of
make_stats(), where the numbers are collected.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).parents[1]
BEST = {"VLLM_ASCEND_APPLY_DSV4_PATCH": "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
MODES = ("off", "on")
PARTS = ("schedule", "make_stats")
STEPS_PER_ROUND = 400
_WARM_UP_STEPS = 600


# The measuring process


def serve(mode: str, num_requests: int) -> None:
    """Child: run a block of steps per line of standard input; answer with their times."""
    import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend.core.kv_cache_coordinator import AscendHybridKVCacheCoordinator
    from vllm_ascend.replay.layouts import dsv4_flash_a3
    from vllm_ascend.replay.scheduler import SchedulerOptions, build_scheduler

    if mode == "off" and hasattr(AscendHybridKVCacheCoordinator, "take_stats"):
        AscendHybridKVCacheCoordinator.take_stats = lambda self: None  # type: ignore[method-assign]
    options = SchedulerOptions(num_blocks=60_000, max_num_seqs=num_requests, max_model_len=20_000)
    steps = timed_steps(build_scheduler(dsv4_flash_a3(128), options), num_requests)
    for _ in itertools.islice(steps, _WARM_UP_STEPS):
        pass
    for line in sys.stdin:
        print(json.dumps(list(itertools.islice(steps, int(line)))), flush=True)


def timed_steps(scheduler, num_requests: int) -> Iterator[tuple[int, int]]:
    """Step for ever; yield the nanoseconds of every step's schedule() and make_stats()."""
    from vllm_ascend.replay.scheduler import make_request

    rng = random.Random(0)
    shared = [rng.randrange(100_000) for _ in range(900)]
    make_stats, took = scheduler.make_stats, [0]

    def timed_make_stats(*args):
        start = time.thread_time_ns()
        stats = make_stats(*args)
        took[0] = time.thread_time_ns() - start
        return stats

    scheduler.make_stats = timed_make_stats
    for number in itertools.count():
        while len(scheduler.requests) < num_requests:
            prompt = shared[: rng.randrange(900)] + [rng.randrange(100_000) for _ in range(100)]
            name = f"r{number}-{len(scheduler.requests)}"
            request = make_request(scheduler, name, prompt, max_tokens=rng.randrange(200, 800))
            scheduler.add_request(request)
        start = time.thread_time_ns()
        output = scheduler.schedule()
        elapsed = time.thread_time_ns() - start
        scheduler.update_from_output(output, _answer(scheduler, output))
        yield elapsed, took[0]


def _answer(scheduler, output):
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    requests = [scheduler.requests[i] for i in ids]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: i for i, name in enumerate(ids)},
        sampled_token_ids=[[1] if r.num_computed_tokens >= r.num_tokens else [] for r in requests],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


# The comparing process


def measure(num_requests: int, pairs: int, rounds: int, against: Path | None) -> list[dict]:
    """Return the medians of every block of steps, in microseconds by mode and part."""
    medians: list[dict] = []
    for _ in range(pairs):
        children = {mode: _start(mode, num_requests, against) for mode in MODES}
        try:
            for round_ in range(rounds):
                row: dict = {}
                for mode in MODES if round_ % 2 else reversed(MODES):
                    times = _ask(children[mode], STEPS_PER_ROUND)
                    columns = zip(*times, strict=True)
                    for part, column in zip(PARTS, columns, strict=True):
                        row[mode, part] = statistics.median(column) / 1000
                        row[mode, f"mean {part}"] = statistics.fmean(column) / 1000
                medians.append(row)
        finally:
            for child in children.values():
                child.stdin.close()
                child.wait()
    return medians


def _start(mode: str, num_requests: int, against: Path | None) -> subprocess.Popen:
    from vllm_ascend.prefix_cache_config import child_environment

    tree = against if mode == "off" and against else REPOSITORY
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), "--child", mode, str(num_requests)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tree,
        env={**child_environment(BEST), "VLLM_LOGGING_LEVEL": "ERROR", "PYTHONPATH": str(tree)},
    )


def _ask(child: subprocess.Popen, steps: int) -> list[tuple[int, int]]:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{steps}\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise RuntimeError("the child process ended early")


def show(rows: list[dict], console: Console) -> None:
    """Print medians over all blocks, and what the metrics cost relative to schedule()."""
    table = Table("microseconds per step", "off", "on", "difference", box=None)
    added: dict[str, float] = {}
    for part in (*PARTS, *(f"mean {part}" for part in PARTS)):
        off, on = (statistics.median(row[mode, part] for row in rows) for mode in MODES)
        added[part] = statistics.median(row["on", part] - row["off", part] for row in rows)
        label = part if part.startswith("mean") else f"p50 {part}"
        table.add_row(f"{label}()", f"{off:.1f}", f"{on:.1f}", f"{added[part]:+.2f}")
    console.print(table)
    for prefix in ("", "mean "):
        schedule = statistics.median(row["off", f"{prefix}schedule"] for row in rows)
        total = sum(added[f"{prefix}{part}"] for part in PARTS)
        kind = "mean" if prefix else "p50"
        console.print(
            f"cost, {kind}: {total:+.2f} us = {100 * total / schedule:+.2f} % of schedule()"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=64, help="running requests")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of 400 steps per process")
    parser.add_argument("--against", type=Path, help="a checkout without metrics, as off")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child[0], int(args.child[1]))
        return
    against = args.against.resolve() if args.against else None
    console = Console()
    with console.status("measuring"):
        rows = measure(args.requests, args.pairs, args.rounds, against)
    console.print(
        f"{args.requests} running requests, {len(rows)} blocks of {STEPS_PER_ROUND} steps"
    )
    show(rows, console)


if __name__ == "__main__":
    main()
