# SPDX-License-Identifier: Apache-2.0
"""The proof of exactness: random traffic on real schedulers, every step verified."""

from __future__ import annotations

from zlib import crc32

import pytest

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.workload import Workload

_GRID = grid()
_TOTAL_SHARES = sum(cell.case.share for cell in _GRID)
# Pools that hold this many of the longest requests: the tightest preempts all the time, the
# widest keeps prefixes long enough to be hit.
_ROOMS = (1.05, 2.0, 5.0)


@pytest.mark.parametrize("cell", _GRID, ids=str)
def test_no_step_reads_or_writes_wrong_rows(
    cell: Configuration, make_engine: MakeEngine, pytestconfig: pytest.Config
) -> None:
    """Nothing stale, foreign, half-written or recycled, whatever happens to requests."""
    steps = pytestconfig.getoption("--steps") * cell.case.share / _TOTAL_SHARES
    hits = 0
    for number, room in enumerate(_ROOMS):
        seed = crc32(f"{cell} {number}".encode())
        engine = make_engine(
            lambda: cell.layout,
            lambda room=room: cell.options(room),
            cell.oracle(seed),
            cell.environment,
            name=str(cell),
        )
        Workload(engine, cell.traffic, seed).run(int(steps / len(_ROOMS)) + 1)
        hits += sum(engine.hits.values())
    assert hits or steps < 500, "the workload never hit the cache, so it proves nothing"
