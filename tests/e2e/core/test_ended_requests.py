# SPDX-License-Identifier: Apache-2.0
"""A request that has ended leaves nothing for the next step to do, however long its prompt was.

Its token ids are freed where it ends: freed in ``schedule()``, those of a million tokens would take
longer than the step. And ending it makes no object per block, or it would wake Python's garbage
collector, which walks through the token ids of all requests.
"""

from __future__ import annotations

import gc
import weakref

import pytest

from benchmarks.microscope.sides import SIDES
from benchmarks.microscope.workbench import Passage, build, random_prompt
from vllm_ascend.dry_run.scheduler import make_request
from vllm_ascend.dry_run.worker import SamplingWorker

BEST = SIDES["best-128"]
MILLION = 1 << 20


@pytest.fixture(autouse=True)
def best(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm_ascend.patch.platform  # noqa: F401 - installs the patches

    for name, value in BEST.environment.items():
        monkeypatch.setenv(name, value)


def test_nobody_holds_a_request_that_has_ended() -> None:
    scheduler = build(BEST, max_num_seqs=3)
    assert scheduler.kv_cache_manager.coordinator.waiting_order is not None
    worker, ended = SamplingWorker(scheduler), []
    for number in range(6):
        request = make_request(scheduler, str(number), random_prompt(1000, seed=number), 1)
        scheduler.add_request(request)
        ended.append(weakref.ref(request))
        del request
    gc.disable()
    try:
        while scheduler.requests:
            output = scheduler.schedule()
            scheduler.update_from_output(output, worker.execute(output))
            del output
            live = [number for number, request in enumerate(ended) if request() is not None]
            assert live == [int(name) for name in scheduler.requests]
    finally:
        gc.enable()


def test_ending_a_million_tokens_wakes_no_garbage_collector() -> None:
    passage = Passage(BEST, MILLION)
    passage.serve()
    assert len(passage.manager.get_block_ids("r1")[0]) > 2 * gc.get_threshold()[0]
    collections: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(info["generation"])

    gc.collect()
    gc.callbacks.append(note)
    try:
        passage.free()
    finally:
        gc.callbacks.remove(note)
    assert collections == []
