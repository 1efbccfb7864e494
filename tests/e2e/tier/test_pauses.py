# SPDX-License-Identifier: Apache-2.0
"""A pause, a sleep or a reset while a request loads: the real ``EngineCoreProc`` around an engine.

Its loop steps only while it has work, and once it has none it resets the cache.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.e2e.core.engine import check_drained
from tests.e2e.tier.engine_core import Core
from tests.e2e.tier.test_disk import settle
from tests.e2e.tier.test_faults import BOUNDARY, PROMPT, answer, host
from tests.e2e.tier.test_random_traffic import small_units
from vllm_ascend.releases import running_release
from vllm_ascend.tier.disk import level
from vllm_ascend.tier.disk.files import DiskFiles
from vllm_ascend.tier.host_memory import HostStore
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk

__all__ = ["small_units"]

LOADS, RUNS = "loads", "runs"


class Load(threading.Event):
    """Loads wait until it is set."""


@pytest.fixture(params=["from memory", "from a disk"])
def source(request) -> str:
    return request.param


@pytest.fixture
def load(monkeypatch, source) -> Iterator[Load]:
    reader = HostStore if source == "from memory" else DiskFiles
    waits, read = Load(), reader.read
    waits.set()
    monkeypatch.setattr(reader, "read", lambda *args: waits.wait(300) and read(*args))
    yield waits
    waits.set()


@pytest.fixture
def core(switch, load, source, tmp_path, monkeypatch) -> Core:
    """An engine of which one request runs and another one loads."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(level, "SETTLE_S", 0.0)
    over = {} if source == "from memory" else {"disk": {"path": str(tmp_path), "gib": 1}}
    engine = host(switch, async_above_mib=0, pool="p", **over)
    answer(engine, "stores")
    answer(engine, "end", [1, 2, 3])
    if over:  # what an engine before it has left
        settle(engine)
        engine = host(switch, async_above_mib=0, pool="p", **over)
    assert engine.reset()
    load.clear()
    engine.add(RUNS, [7, *PROMPT[:40]], 8)
    engine.add(LOADS, PROMPT, 4)
    for _ in range(2):
        engine.step()
    assert engine.requests[LOADS].status.name == "WAITING_FOR_REMOTE_KVS"
    return Core(engine)


def go_on(core: Core, load: Load) -> None:
    """Let the loop turn, and the load end at last."""
    for _ in range(20):
        core.turn()
    load.set()
    while core.turn():
        pass
    core.turn()


@pytest.mark.parametrize("when", ["under the load", "when the load has ended"])
@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_an_engine_is_paused_and_its_cache_is_empty(mode, when, core, load):
    engine = core.engine
    if when == "when the load has ended":
        load.set()
        if isinstance(engine.index, MemoryOverDisk):
            settle(engine)
            engine.step()
        engine.worker.connector.worker_half._reader.submit(int).result()
    paused = core.pause_scheduler(mode=mode, clear_cache=True)
    go_on(core, load)
    assert paused is None or (paused.done() and paused.exception() is None)
    engine.worker.lose_memory()
    core.resume_scheduler()
    engine.run()
    if mode == "abort":
        assert answer(engine, LOADS) == 0, "the tier was emptied as well"
    else:
        waits_for_holders = mode == "wait" and "PAUSED_NEW" in running_release().holders_run_while
        # Else its load was given up, and the tier was emptied as well.
        assert engine.hits[LOADS] == (BOUNDARY if waits_for_holders else 0)
        assert (len(engine.outputs[LOADS]), len(engine.outputs[RUNS])) == (4, 8)
    engine.drain()


def test_a_reset_under_running_requests_gives_the_load_up(core, load):
    engine = core.engine
    assert engine.reset(busy=True)
    engine.check()
    engine.step()
    load.set()
    engine.run()
    assert engine.hits[LOADS] == BOUNDARY, "the tier still has it"
    assert engine.outputs[RUNS] and len(engine.outputs[LOADS]) == 4
    engine.drain()


def test_an_idle_engine_steps_until_the_blocks_of_an_aborted_load_are_free(core, load):
    engine = core.engine
    engine.abort([LOADS, RUNS])
    for _ in range(5):
        assert core.turn(), "it waits for the load"
    load.set()
    while core.turn():
        pass
    assert not engine.scheduler.requests
    assert engine.reset()
    check_drained(engine.manager)
