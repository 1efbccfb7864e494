# SPDX-License-Identifier: Apache-2.0
"""Fails if what a step does for N requests takes more than so much longer for 4 N of them::

python -m benchmarks.microscope.growth

What is linear takes four times as long, what goes through all requests for each of them 16 times.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from vllm.v1.request import RequestStatus

from benchmarks.microscope.sides import SIDES
from benchmarks.microscope.workbench import build, random_prompt
from vllm_ascend.core.admission.room_to_start import RoomToStart
from vllm_ascend.core.admission.waiting_queues import queue_of_holders
from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.dry_run.worker import SamplingWorker

FACTOR = 4
REPEATS = 5
AT_MOST = 8.0
"""Half of what a second walk over all of them would take."""


@dataclass(frozen=True)
class Growth:
    """Something that is done for many requests in one step.

    Attributes:
        name: What it is.
        num_requests: N.
        prepare: N -> what is timed. Called anew for every measurement.
    """

    name: str
    num_requests: int
    prepare: Callable[[int], Callable[[], object]]


def loads_that_wait(num_requests: int) -> Callable[[], object]:
    """A step in which nothing runs and all requests wait for what a connector brings."""
    scheduler = build(SIDES["best-128"], max_num_seqs=num_requests)
    for number in range(num_requests):
        request = make_request(scheduler, str(number), [1] * 200, 1)
        scheduler.requests[request.request_id] = request
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        queue_of_holders(scheduler).add_request(request)
    return scheduler.schedule


def loads_let_in(num_requests: int) -> Callable[[], object]:
    """A step that lets loads in, each of which must leave room for those before it."""
    scheduler = build(SIDES["best-128"], max_num_seqs=num_requests)
    coordinator = scheduler.kv_cache_manager.coordinator
    ledger = coordinator.ledger
    room = RoomToStart(coordinator.blocks_needed, ledger, coordinator.groups, coordinator.plan)

    def let_in() -> None:
        for number in range(num_requests):
            request = make_request(scheduler, str(number), [1] * 200, 1)
            ledger.record(request.request_id).request = request
            ledger.load_starts(request.request_id)
            room.blocks()

    return let_in


def samples_that_end(num_requests: int) -> Callable[[], object]:
    """Samples of one prompt end, each of which has a copy of its last blocks."""
    scheduler = build(SIDES["best-128"], max_num_seqs=num_requests)
    worker, prompt = SamplingWorker(scheduler), random_prompt(1000, seed=0)
    names = [str(number) for number in range(num_requests)]

    def step() -> None:
        output = scheduler.schedule()
        scheduler.update_from_output(output, worker.execute(output))

    scheduler.add_request(make_request(scheduler, "first", prompt, 1))
    while scheduler.requests:
        step()
    for name in names:
        scheduler.add_request(make_request(scheduler, name, prompt, 100))
    while scheduler.waiting:
        step()
    step()
    assert scheduler.kv_cache_manager.coordinator.stats.partial_hits == num_requests
    return partial(scheduler.finish_requests, names, RequestStatus.FINISHED_ABORTED)


GROWTHS = (
    Growth("schedule(), all wait for loads", 300, loads_that_wait),
    Growth("room for loaded requests", 300, loads_let_in),
    Growth("samples of one prompt end", 64, samples_that_end),
)


def seconds_of(growth: Growth, num_requests: int) -> float:
    """Return the CPU time for so many requests."""
    timed = growth.prepare(num_requests)
    gc.collect()
    start = time.process_time()
    timed()
    return time.process_time() - start


def ratios_of(growth: Growth, seconds: Callable[[Growth, int], float] = seconds_of) -> list[float]:
    """Return how much longer the more requests take, until that is little enough once."""
    ratios: list[float] = []
    while len(ratios) < REPEATS and not (ratios and ratios[-1] <= AT_MOST):
        few = seconds(growth, growth.num_requests)
        ratios.append(seconds(growth, FACTOR * growth.num_requests) / few)
    return ratios


def main() -> int:
    """Check everything; return the exit status."""
    SIDES["best-128"].enter()
    logging.getLogger("vllm").setLevel(logging.ERROR)
    table = Table("what", "requests", "at most", "measured", box=SIMPLE_HEAD)
    is_kept = True
    for growth in GROWTHS:
        ratios = ratios_of(growth)
        is_kept = is_kept and min(ratios) <= AT_MOST
        table.add_row(
            growth.name,
            f"{growth.num_requests}, {FACTOR * growth.num_requests}",
            f"{AT_MOST:.2f}",
            ", ".join(f"{ratio:.2f}" for ratio in ratios),
            style="" if min(ratios) <= AT_MOST else "bold red",
        )
    Console().print(table)
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
