# SPDX-License-Identifier: Apache-2.0
"""What pinning costs the scheduler where everything fits: 15 shared prefixes, asked for in turn.

    python -m benchmarks.pinned_overhead [--prefixes 15] [--rounds 6]

Two processes, one of unpatched vLLM and one with pinning, take turns round by round, so that a
change of the machine's speed hits both. Printed are the medians of the CPU time of ``schedule()``
for steps that compute a whole chunk, the rest behind a hit, and one token, with the median ratio
within a round; and that of whole rounds, all of their steps together.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.children import Child, answer_all

MODES = {"unpatched": {}, "pinned": {"VLLM_PIN_SWA_TOKENS": "1"}}
KV_TOKENS, MAX_MODEL_LEN = 1_470_000, 32_768
SHARED, OWN, OUTPUT = 28_672, 512, 64


def serve(mode: str, num_prefixes: int, num_rounds: int) -> None:
    """Child: serve a round per question; answer [tokens of the step, seconds] of its steps."""
    from vllm_ascend.dry_run.layouts import from_hf_config
    from vllm_ascend.dry_run.scheduler import (
        SchedulerOptions,
        build_scheduler,
        kv_memory_for,
        make_request,
    )
    from vllm_ascend.dry_run.worker import SamplingWorker
    from vllm_ascend_evaluation.replay.curves.prefixes import GEMMA
    from vllm_ascend_evaluation.replay.workloads import round_robin

    layout = from_hf_config(Path(GEMMA), 16)
    sizes = {"max_model_len": MAX_MODEL_LEN}
    memory = kv_memory_for(layout, KV_TOKENS, SchedulerOptions(num_blocks=1, **sizes))
    if mode == "pinned":
        import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    scheduler = build_scheduler(layout, SchedulerOptions(kv_memory_bytes=memory, **sizes))
    workload = round_robin(
        "turns",
        num_prefixes=num_prefixes,
        num_rounds=num_rounds,
        shared_tokens=SHARED,
        own_tokens=OWN,
        output_tokens=OUTPUT,
        concurrency=1,
        seed=0,
    )
    worker = SamplingWorker(scheduler)
    requests = enumerate(workload.requests())

    def serve_round(_: None) -> list[tuple[int, float]]:
        times: list[tuple[int, float]] = []
        for _ in range(num_prefixes):
            number, request = next(requests)
            scheduler.add_request(
                make_request(scheduler, str(number), request.prompt_token_ids, OUTPUT)
            )
            times += list(_steps(scheduler, worker))
        return times

    answer_all(serve_round)


def _steps(scheduler, worker) -> Iterator[tuple[int, float]]:
    while scheduler.requests:
        start = time.process_time()
        output = scheduler.schedule()
        elapsed = time.process_time() - start
        scheduler.update_from_output(output, worker.execute(output))
        yield output.total_num_scheduled_tokens, elapsed


def measure(num_prefixes: int, num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return per kind of step and mode the median time of every round, in seconds; and a
    whole round's sum.
    """
    children = {mode: _start(mode, num_prefixes, num_rounds) for mode in MODES}
    medians: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_ in range(num_rounds):
        for mode in MODES if round_ % 2 else reversed(MODES):
            by_kind, total = defaultdict(list), 0.0
            for tokens, elapsed in children[mode].ask(None):
                by_kind[_kind(tokens)].append(elapsed)
                total += elapsed
            medians["whole round"][mode].append(total)
            for kind, times in by_kind.items():
                medians[kind][mode].append(statistics.median(times))
    for child in children.values():
        child.end()
    return medians


def _kind(tokens: int) -> str:
    if tokens == 1:
        return "one token"
    return "behind a hit" if tokens < 1024 else "whole chunk"


def _start(mode: str, num_prefixes: int, num_rounds: int) -> Child:
    return Child(
        "benchmarks.pinned_overhead",
        *("--child", mode, "--prefixes", str(num_prefixes), "--rounds", str(num_rounds)),
        environment=MODES[mode],
    )


def main() -> None:
    """Print one line per kind of step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prefixes", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=6, help="the first one hits nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        serve(args.child, args.prefixes, args.rounds)
        return
    print(
        f"CPU time of schedule(), p50, with {args.prefixes} prefixes of {SHARED:,} tokens in turn"
    )
    print(f"{'step':<14} {'unpatched us':>13} {'pinned us':>11} {'ratio':>7}")
    for kind, times in measure(args.prefixes, args.rounds).items():
        ratio = statistics.median(
            pinned / unpatched
            for unpatched, pinned in zip(times["unpatched"], times["pinned"], strict=True)
        )
        unpatched, pinned = (statistics.median(times[mode]) * 1e6 for mode in MODES)
        print(f"{kind:<14} {unpatched:>13.1f} {pinned:>11.1f} {ratio:>7.3f}")


if __name__ == "__main__":
    main()
