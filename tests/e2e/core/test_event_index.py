# SPDX-License-Identifier: Apache-2.0
"""An index that follows KV events alone finds, step by step, what the engine's look-up hits."""

from __future__ import annotations

from zlib import crc32

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import (
    CASES,
    MODES,
    RETENTION,
    SWITCHES,
    Configuration,
    grid,
)
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.event_follower import (
    Follower,
    engine_hit,
    index_hit,
    over_the_wire,
)
from tests.e2e.core.workload import Traffic, Workload
from vllm_ascend.dry_run.scheduler import SchedulerOptions
from vllm_ascend.kv_events.relay import PrefixEvents
from vllm_ascend_evaluation.kv_events.prefix_index import PrefixIndex

# All switches of all layouts, without drafts and with one; other ways of scheduling where steps
# are cheapest, and one where they are dearest. The widest pool keeps what is hit, the tightest
# evicts and preempts all the time.
_OTHER_MODES = ("priority", "mtp3", "async-mtp")
_DEAR = ("dsv4-a3-64", "dsv4-a3-128")
_ROOMS = (2.5, 1.05)
_CELLS = [
    cell
    for cell in grid()
    if cell.switches.name != "retention-unset"
    and (
        cell.mode.name == "mtp1"
        or (cell.mode.name == "plain" and cell.case.name not in _DEAR)
        or (cell.mode.name in _OTHER_MODES and cell.case.name in ("gemma", "dsv4-rows"))
    )
]


def build(cell: Configuration, room: float, seed: int, make_engine: MakeEngine) -> Engine:
    options = vars(cell.options(room)) | {"enable_kv_cache_events": True}
    return make_engine(
        lambda: cell.layout, SchedulerOptions(**options), cell.oracle(seed), cell.environment
    )


@pytest.mark.parametrize("cell", _CELLS, ids=str)
def test_the_index_finds_what_the_engine_hits(cell: Configuration, make_engine: MakeEngine) -> None:
    """Masks, partial hits, drafts, eviction, preemption, aborts, resets, tenants."""
    seed = crc32(str(cell).encode())
    room = _ROOMS[seed % len(_ROOMS)]
    follower = Follower(build(cell, room, seed, make_engine), seed, probes_per_step=2)
    Workload(follower.engine, cell.traffic, seed).run(80)
    assert follower.outcomes["miss"]
    # In a tight pool, or where only blocks of thousands of tokens count, a few steps may see none.
    sees_hits = room > 2 and not cell.case.name.startswith("dsv4-a3")
    assert follower.outcomes["hit"] or not sees_hits, "the probes prove nothing"


@pytest.mark.parametrize("name", ["gemma-mtp1-spare-0", "dsv4-rows-mtp1-best"])
def test_names_may_be_bytes(
    name: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0``."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    cell = next(cell for cell in grid() if str(cell) == name)
    follower = Follower(build(cell, 2.5, 5, make_engine), 5)
    Workload(follower.engine, cell.traffic, 5).run(60)
    assert follower.outcomes["hit"]


@pytest.mark.parametrize("num_drafts", [0, 1])
def test_full_attention_in_blocks_finer_than_a_granule(
    num_drafts: int, make_engine: MakeEngine
) -> None:
    """Its granules are told of once all of their blocks are cached."""
    options = SchedulerOptions(
        num_blocks=90,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        max_model_len=130,
        num_speculative_tokens=num_drafts,
        enable_kv_cache_events=True,
    )
    engine = make_engine(layouts.fine_full, options, None, {RETENTION: "16"})
    follower = Follower(engine, 2)
    Workload(engine, Traffic(8, 70, 40), 2).run(200)
    assert follower.outcomes["hit"]


@pytest.mark.parametrize("mode", [MODES[0], MODES[4]], ids=lambda mode: mode.name)
def test_plain_vllm_with_full_attention_only(mode, make_engine: MakeEngine) -> None:
    """Nothing is switched on and nothing described: every copy is announced."""
    case = next(case for case in CASES if case.name == "full")
    cell = Configuration(case, mode, SWITCHES[0])
    engine = build(cell, 2.0, 3, make_engine)
    follower = Follower(engine, 3, index=PrefixIndex(described=False))
    Workload(engine, cell.traffic, 3).run(150)
    assert follower.outcomes["hit"] and follower.outcomes["hit of a tenant"]


@pytest.mark.parametrize("name", ["gemma-plain-spare-0", "dsv4-rows-mtp1-best"])
def test_a_router_that_knows_no_groups_never_finds_too_little(
    name: str, make_engine: MakeEngine
) -> None:
    """It is fed by the relay, and takes every stored name for a piece of a prefix."""
    cell = next(cell for cell in grid() if str(cell) == name)
    prefixes = PrefixEvents()
    follower = UpperBound(
        build(cell, 1.05, 4, make_engine),
        4,
        read=lambda events: prefixes.of(over_the_wire(events)),
        index=PrefixIndex(described=False),
    )
    Workload(follower.engine, cell.traffic, 4).run(150)
    assert follower.outcomes["hit"]


class UpperBound(Follower):
    """Expects the index to find at least what the engine hits."""

    def compare(self, tokens: list[int], salt: str | None = None, adapter: int = 0) -> None:
        """Ask both about one prompt."""
        expected = engine_hit(self.engine, tokens, salt, adapter)
        assert index_hit(self.index, tokens, salt, adapter) >= expected
        self.outcomes["hit" if expected else "miss"] += 1


@pytest.mark.parametrize("lost", ["BlockRemoved", "BlockStored"])
def test_a_lost_event_is_noticed(lost: str, make_engine: MakeEngine) -> None:
    """So the comparisons above would notice an event that was never published."""

    def forgetful(events) -> list:
        read = over_the_wire(events)
        dropped = [i for i, e in enumerate(read) if type(e).__name__ == lost and e.block_hashes]
        return [event for i, event in enumerate(read) if i not in dropped[::3]]

    cell = next(cell for cell in grid() if str(cell) == "dsv4-rows-plain-best")
    follower = Follower(build(cell, 1.05, 1, make_engine), 1, read=forgetful)
    with pytest.raises(AssertionError, match="index"):
        Workload(follower.engine, cell.traffic, 1).run(300)
