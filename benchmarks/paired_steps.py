# SPDX-License-Identifier: Apache-2.0
"""Two schedulers in one process take their steps in turns, so that a busy machine slows both."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from unittest.mock import patch

from rich.progress import track

T = TypeVar("T")

# What both are built with.
SWITCHES = {
    "VLLM_ASCEND_APPLY_DSV4_PATCH": "1",
    "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def build(environment: Mapping[str, str], **options: int) -> Any:
    """Return a scheduler of DeepSeek-V4-Flash's layout on A3.

    Args:
        environment: Variables that are set for it in any case, whatever the shell has.
        **options: Of ``SchedulerOptions``.
    """
    import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
    from vllm_ascend.dry_run.layouts import dsv4_flash_a3
    from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler

    with patch.dict(os.environ, environment):
        return build_scheduler(dsv4_flash_a3(128), SchedulerOptions(**options))


def in_turns(
    one: Iterator[T], two: Iterator[T], *, num_steps: int, num_warm_up: int
) -> Iterator[tuple[T, T]]:
    """Yield what each step of the one gives with the same step of the other.

    Args:
        one: Steps when asked for the next.
        two: The same, of another scheduler.
        num_steps: So many pairs, during which no garbage is collected.
        num_warm_up: So many before them, which are not yielded.
    """
    for _ in track(range(num_warm_up), "warming up"):
        next(one), next(two)
    gc.collect()
    gc.disable()
    for step in track(range(num_steps), "measuring"):
        # The one that comes second finds a warmer machine.
        if step % 2:
            first = next(one)
            yield first, next(two)
        else:
            second = next(two)
            yield next(one), second
    gc.enable()


def timed_step(scheduler: Any, worker: Any) -> tuple[Any, int, int]:
    """Take a step; return its output, and the CPU time of both parts in nanoseconds.

    The parts are ``schedule()`` and ``update_from_output()``.
    """
    start = time.thread_time_ns()
    output = scheduler.schedule()
    scheduled = time.thread_time_ns() - start
    result = worker.execute(output)
    start = time.thread_time_ns()
    scheduler.update_from_output(output, result)
    return output, scheduled, time.thread_time_ns() - start


def paired_arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser of what says how long to measure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--requests", type=int, default=64, help="running requests")
    parser.add_argument("--steps", type=int, default=3000, help="pairs of steps in a repeat")
    parser.add_argument("--repeats", type=int, default=4, help="even numbers are fair")
    return parser
