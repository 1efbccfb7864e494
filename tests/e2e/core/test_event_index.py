# SPDX-License-Identifier: Apache-2.0
"""An index that follows KV events alone finds, step by step, what the engine's look-up hits."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

import pytest

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.event_follower import Follower
from tests.e2e.core.workload import Workload
from vllm_ascend.replay.scheduler import SchedulerOptions

# Every switch of every layout in the modes that differ for the cache, and a few more.
_MODES = ("plain", "mtp1", "async-mtp")
_CELLS = [
    cell
    for cell in grid()
    if cell.switches.name != "retention-unset" and cell.mode.name in (*_MODES, "priority")
]
_ROOMS = (1.05, 2.5)


@pytest.mark.parametrize("cell", _CELLS, ids=str)
def test_the_index_finds_what_the_engine_hits(cell: Configuration, make_engine: MakeEngine) -> None:
    """Masks, partial hits, drafts, eviction, preemption, aborts, resets, tenants."""
    outcomes: Counter[str] = Counter()
    for room in _ROOMS:
        seed = crc32(f"{cell} {room}".encode())
        options = vars(cell.options(room)) | {"enable_kv_cache_events": True}
        engine = make_engine(
            lambda: cell.layout, SchedulerOptions(**options), cell.oracle(seed), cell.environment
        )
        follower = Follower(engine, seed)
        Workload(engine, cell.traffic, seed).run(60)
        outcomes += follower.outcomes
    assert outcomes["hit"] and outcomes["miss"], "the probes prove nothing"
