# SPDX-License-Identifier: Apache-2.0
"""What the patches cost when nothing is switched on: schedule() time, patched against unpatched.

    python -m benchmarks.unset_overhead [--requests 32] [--pairs 3] [--rounds 4]

Two processes, one with and one without the patches, take turns step block by step block, so that
a change of the machine's speed hits both; several such pairs, because a process keeps the memory
layout it happened to get. Printed are the medians of schedule() over all decode steps and the
median ratio within a round, per layout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from vllm_ascend.prefix_cache_config import child_environment

MODES = ("unpatched", "patched")
LAYOUTS = ("full", "gemma", "dsv4-gpu")
STEPS_PER_ROUND = 200
REPOSITORY = Path(__file__).parents[1]


def serve(mode: str, layout: str, num_requests: int) -> None:
    """Child: build a scheduler, prefill, then time a block of decode steps per line of input."""
    if mode == "patched":
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from tests.e2e.core.scheduler_trace import LAYOUTS as BUILDERS
    from vllm_ascend.replay.scheduler import SchedulerOptions, build_scheduler, make_request

    scheduler = build_scheduler(
        BUILDERS[layout](),
        SchedulerOptions(num_blocks=200_000, max_num_seqs=num_requests, max_model_len=100_000),
    )
    for i in range(num_requests):
        prompt = [i * 1000 + token % 999 for token in range(1000)]
        scheduler.add_request(make_request(scheduler, f"r{i}", prompt, max_tokens=90_000))
    while any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.requests.values()):
        timed_step(scheduler)
    for line in sys.stdin:
        times = [timed_step(scheduler) for _ in range(int(line))]
        print(json.dumps(times), flush=True)


def timed_step(scheduler) -> float:
    from vllm.v1.outputs import ModelRunnerOutput

    start = time.perf_counter()
    output = scheduler.schedule()
    elapsed = time.perf_counter() - start
    ids = list(output.num_scheduled_tokens)
    done = [
        scheduler.requests[i].num_computed_tokens >= scheduler.requests[i].num_tokens for i in ids
    ]
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: i for i, name in enumerate(ids)},
        sampled_token_ids=[[1] if complete else [] for complete in done],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    scheduler.update_from_output(output, result)
    return elapsed


def measure(layout: str, num_requests: int, pairs: int, rounds: int) -> tuple[float, float, float]:
    """Return the median schedule() times (seconds) without and with patches, and their ratio.

    The ratio is the median over all rounds of the ratio within a round.
    """
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    ratios: list[float] = []
    for _ in range(pairs):
        children = {mode: _start(mode, layout, num_requests) for mode in MODES}
        try:
            for round_ in range(rounds):
                medians = {}
                for mode in MODES if round_ % 2 else reversed(MODES):
                    block = _ask(children[mode], STEPS_PER_ROUND)
                    times[mode] += block
                    medians[mode] = statistics.median(block)
                ratios.append(medians["patched"] / medians["unpatched"])
        finally:
            for child in children.values():
                child.stdin.close()
                child.wait()
    unpatched, patched = (statistics.median(times[mode]) for mode in MODES)
    return unpatched, patched, statistics.median(ratios)


def _start(mode: str, layout: str, num_requests: int) -> subprocess.Popen:
    module = "benchmarks.unset_overhead"
    return subprocess.Popen(
        [sys.executable, "-m", module, "--child", mode, layout, str(num_requests)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
        env={**child_environment({}), "VLLM_LOGGING_LEVEL": "ERROR"},
    )


def _ask(child: subprocess.Popen, steps: int) -> list[float]:
    child.stdin.write(f"{steps}\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith("["):
            return json.loads(line)
    raise RuntimeError("the child process ended early")


def main() -> None:
    """Print one line per layout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=32, help="running requests")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=4, help="blocks of 200 steps per process")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        mode, layout, num_requests = args.child
        serve(mode, layout, int(num_requests))
        return
    print(f"schedule() p50 with {args.requests} running decodes, everything unset")
    print(f"{'layout':<10} {'unpatched us':>13} {'patched us':>11} {'ratio':>7}")
    for layout in LAYOUTS:
        unpatched, patched, ratio = measure(layout, args.requests, args.pairs, args.rounds)
        print(f"{layout:<10} {unpatched * 1e6:>13.1f} {patched * 1e6:>11.1f} {ratio:>7.3f}")


if __name__ == "__main__":
    main()
