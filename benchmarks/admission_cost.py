# SPDX-License-Identifier: Apache-2.0
"""What putting waiting requests into order costs the scheduler.

    python -m benchmarks.admission_cost [--waiting 256] [--tokens 100000] [--steps 2000]

Two schedulers in one process are asked for the same sessions under the profile ``best``, a step of
the one beside a step of the other: one with ``VLLM_ASCEND_ADMISSION=fcfs``, one with ``cached``.
Their memory holds a few prompts, so many sessions wait at all times, and half of the turns go on
behind all of the turn before, the others behind half of it. Then the same with memory for all that
run, where nobody waits. What is compared is the CPU time of ``schedule()``.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator
from itertools import count

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import paired_steps
from benchmarks.paired_steps import SWITCHES, in_turns, timed_step

_VARIABLE = "VLLM_ASCEND_ADMISSION"
ADMISSIONS = ("fcfs", "cached")
_WARM_UP_STEPS = 200
_GIB = 1 << 30
_ANSWER_TOKENS = 128
# Nobody waits: prompts that fit at the same time.
_RUNNING, _SHORT_TOKENS = 64, 2000


def build(admission: str, num_seqs: int, kv_cache_gib: int, num_tokens: int):
    """Return a scheduler that lets requests in so.

    Args:
        num_tokens: Of a prompt.
    """
    return paired_steps.build(
        {_VARIABLE: admission},
        kv_memory_bytes=kv_cache_gib * _GIB,
        max_num_seqs=num_seqs,
        max_model_len=num_tokens + _ANSWER_TOKENS,
    )


def timed_steps(scheduler, num_live: int, num_tokens: int) -> Iterator[float]:
    """Step for ever with so many live sessions; yield the milliseconds of ``schedule()``."""
    from vllm_ascend.dry_run.scheduler import make_request
    from vllm_ascend.dry_run.worker import SamplingWorker

    rng, tokens = random.Random(0), np.random.default_rng(0)
    sessions = [tokens.integers(0, 100_000, num_tokens).tolist() for _ in range(num_live)]
    worker, names = SamplingWorker(scheduler), count()
    while True:
        while len(scheduler.requests) < num_live:
            number = next(names)
            place = number % num_live
            if number >= num_live and rng.random() < 1 / 2:
                half = num_tokens // 2
                own = tokens.integers(0, 100_000, num_tokens - half).tolist()
                sessions[place] = sessions[place][:half] + own
            scheduler.add_request(
                make_request(
                    scheduler, str(number), sessions[place], rng.randrange(32, _ANSWER_TOKENS)
                )
            )
        _, scheduled, _ = timed_step(scheduler, worker)
        yield scheduled / 1e6


def measure(num_steps: int, num_live: int, num_tokens: int, kv_cache_gib: int) -> list[np.ndarray]:
    """Return the milliseconds of every step: as they came, and cached ones first."""
    built = [build(each, num_live, kv_cache_gib, num_tokens) for each in ADMISSIONS]
    steps = [timed_steps(scheduler, num_live, num_tokens) for scheduler in built]
    pairs = list(in_turns(*steps, num_steps=num_steps, num_warm_up=_WARM_UP_STEPS))
    return [np.array(times) for times in zip(*pairs, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--waiting", type=int, default=256, help="requests that wait")
    parser.add_argument("--tokens", type=int, default=100_000, help="tokens of their prompts")
    parser.add_argument("--steps", type=int, default=2000, help="pairs of steps")
    args = parser.parse_args()
    os.environ.update(SWITCHES)
    table = Table("schedule(), ms", "", *ADMISSIONS, "more", "ratio", box=None)
    cases = {
        "nobody waits": (_RUNNING, _SHORT_TOKENS, 64),
        f"{args.waiting} wait": (args.waiting, args.tokens, 16),
    }
    for case, traffic in cases.items():
        times = measure(args.steps, *traffic)
        for name, percent in (("p50", 50), ("p99", 99)):
            fcfs, cached = (float(np.percentile(each, percent)) for each in times)
            ratio = f"{cached / fcfs:.3f}"
            table.add_row(case, name, f"{fcfs:.2f}", f"{cached:.2f}", f"{cached - fcfs:.2f}", ratio)
    Console().print(table)


if __name__ == "__main__":
    main()
