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
import statistics
import time

from benchmarks.children import Child, answer_all

MODES = ("unpatched", "patched")
LAYOUTS = ("full", "gemma", "dsv4-gpu")
STEPS_PER_ROUND = 200


def serve(mode: str, layout: str, num_requests: int) -> None:
    """Child: build a scheduler, prefill, then time as many decode steps as each question asks."""
    if mode == "patched":
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from benchmarks.steps import finish_prefill
    from tests.e2e.core.scheduler_trace import LAYOUTS as BUILDERS
    from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request
    from vllm_ascend.dry_run.worker import SamplingWorker

    scheduler = build_scheduler(
        BUILDERS[layout](),
        SchedulerOptions(num_blocks=200_000, max_num_seqs=num_requests, max_model_len=100_000),
    )
    for i in range(num_requests):
        prompt = [i * 1000 + token % 999 for token in range(1000)]
        scheduler.add_request(make_request(scheduler, f"r{i}", prompt, max_tokens=90_000))
    finish_prefill(scheduler)
    worker = SamplingWorker(scheduler)

    def timed_step() -> float:
        start = time.perf_counter()
        output = scheduler.schedule()
        elapsed = time.perf_counter() - start
        scheduler.update_from_output(output, worker.execute(output))
        return elapsed

    answer_all(lambda num_steps: [timed_step() for _ in range(num_steps)])


def measure(layout: str, num_requests: int, pairs: int, rounds: int) -> tuple[float, float, float]:
    """Return the median schedule() times (seconds) without and with patches, and their ratio.

    The ratio is the median over all rounds of the ratio within a round.
    """
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    ratios: list[float] = []
    for _ in range(pairs):
        children = {mode: _start(mode, layout, num_requests) for mode in MODES}
        for round_ in range(rounds):
            medians = {}
            for mode in MODES if round_ % 2 else reversed(MODES):
                block = children[mode].ask(STEPS_PER_ROUND)
                times[mode] += block
                medians[mode] = statistics.median(block)
            ratios.append(medians["patched"] / medians["unpatched"])
        for child in children.values():
            child.end()
    unpatched, patched = (statistics.median(times[mode]) for mode in MODES)
    return unpatched, patched, statistics.median(ratios)


def _start(mode: str, layout: str, num_requests: int) -> Child:
    module = "benchmarks.unset_overhead"
    return Child(module, "--child", mode, layout, str(num_requests), environment={})


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
