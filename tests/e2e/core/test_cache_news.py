# SPDX-License-Identifier: Apache-2.0
"""The front end's index finds, step by step, what each rank's own look-up hits."""

from __future__ import annotations

import random
from zlib import crc32

import pytest
from vllm.lora.request import LoRARequest

from tests.e2e.core.configurations import Configuration, grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.event_follower import Follower
from tests.e2e.core.workload import Workload
from vllm_ascend.dp_routing.index import CacheIndex
from vllm_ascend.dp_routing.names import prompt_names
from vllm_ascend.dp_routing.news import decode_news, encode_news
from vllm_ascend.dry_run.scheduler import SchedulerOptions, make_request
from vllm_ascend.prefix_cache_config import load_config

_ROUTING = {"VLLM_ASCEND_DP_ROUTING": "cache"}
_ROOMS = (2.5, 1.05)
# Every layout with and without drafts, as most run it; all switches where steps are cheapest.
_CELLS = [
    cell
    for cell in grid()
    if cell.switches.name != "retention-unset"
    and cell.mode.name in ("plain", "mtp1")
    and (cell.switches.name == "best" or cell.case.name in ("gemma", "dsv4-rows"))
]


class NewsIndex:
    """An index of several ranks in the place of one engine's; the rank is the last."""

    def __init__(self, engine: Engine, lose: random.Random | None = None) -> None:
        self.index = CacheIndex(3)
        self._engine, self._lose = engine, lose
        self.num_messages = self.num_bytes = 0

    @property
    def _log(self):
        return self._engine.manager.block_pool.event_log

    def follow(self) -> None:
        """Hear what is new; of lost messages only the gap is noticed, and all is asked for anew."""
        news = self._log.take_news()
        if news is None or (self._lose is not None and self._lose.random() < 0.2):
            return
        message = encode_news(news)
        self.num_messages += 1
        self.num_bytes += len(message)
        self.index.apply(2, decode_news(message))
        if not self.index.is_known(2):
            self.index.apply(2, self._log.all_news())

    def apply(self, events) -> None:
        """KV events are not read."""

    def longest_hit(
        self, tokens: list[int], *, cache_salt: str | None, lora_name: str | None
    ) -> int:
        lora = LoRARequest(lora_name, int(lora_name[-1]), "/nowhere") if lora_name else None
        request = make_request(
            self._engine.scheduler, "probe", tokens, 1, cache_salt=cache_salt, lora=lora
        )
        names = prompt_names(request, self.index.hash_tokens or 1)
        first, second, third = self.index.look_up(names, len(tokens))
        assert first == second == (0, 0)
        assert third.matched >= third.hit
        return third.hit


class NewsFollower(Follower):
    """Follows what the rank tells the front end."""

    def __init__(self, engine: Engine, seed: int, **kwargs) -> None:
        super().__init__(engine, seed, 3, index=NewsIndex(engine), **kwargs)

    def _publish(self):
        self.index.follow()
        return self._take_events()


def build(
    cell: Configuration, room: float, seed: int, make_engine: MakeEngine, **more: bool
) -> Engine:
    options = vars(cell.options(room)) | {"is_data_parallel": True, **more}
    return make_engine(
        lambda: cell.layout,
        SchedulerOptions(**options),
        cell.oracle(seed),
        {**cell.environment, **_ROUTING},
    )


@pytest.mark.parametrize("cell", _CELLS, ids=str)
def test_the_index_finds_what_the_rank_hits(cell: Configuration, make_engine: MakeEngine) -> None:
    """Masks, partial hits, drafts, eviction, preemption, aborts, resets, tenants."""
    seed = crc32(str(cell).encode())
    room = _ROOMS[seed % len(_ROOMS)]
    follower = NewsFollower(build(cell, room, seed, make_engine), seed)
    Workload(follower.engine, cell.traffic, seed).run(80)
    assert follower.outcomes["miss"]
    sees_hits = room > 2 and not cell.case.name.startswith("dsv4-a3")
    assert follower.outcomes["hit"] or not sees_hits, "the probes prove nothing"


def cell_named(name: str) -> Configuration:
    return next(cell for cell in grid() if str(cell) == name)


def test_lost_messages_are_noticed_and_all_is_told_anew(make_engine: MakeEngine) -> None:
    """One of five is lost on the way; the next one shows the gap."""
    cell = cell_named("dsv4-rows-mtp1-best")
    engine = build(cell, 1.05, 6, make_engine)
    index = NewsIndex(engine, lose=random.Random(6))
    wrong = []

    class Tolerant(NewsFollower):
        def compare(self, *probe) -> None:
            try:
                super().compare(*probe)
            except AssertionError:
                wrong.append(probe)

    follower = Tolerant(engine, 6)
    follower.index = index
    Workload(engine, cell.traffic, 6).run(150)
    assert wrong, "nothing was lost"
    index._lose = None
    while not index.index.is_known(2) or index._log.take_news() is not None:
        engine.step()
        index.follow()
    index.index.apply(2, index._log.all_news())
    before = len(wrong)
    for _ in range(200):
        follower.compare(*follower._probe())
    assert len(wrong) == before


def test_kv_events_and_the_front_end_are_told_alike(make_engine: MakeEngine) -> None:
    """Both are on: each follower finds what the engine hits."""
    cell = cell_named("dsv4-rows-mtp1-best")
    engine = build(cell, 2.5, 9, make_engine, enable_kv_cache_events=True)
    by_events = Follower(engine, 9)
    by_news = NewsFollower(engine, 10)
    Workload(engine, cell.traffic, 9).run(80)
    assert by_events.outcomes["hit"] and by_news.outcomes["hit"]


def test_nothing_is_collected_where_nobody_chooses(make_engine: MakeEngine) -> None:
    """One rank, external balancing, or the variable unset: there is no log at all."""
    cell = cell_named("gemma-plain-spare-0")
    options = SchedulerOptions(**vars(cell.options(2.5)))
    alone = make_engine(lambda: cell.layout, options, None, {**cell.environment, **_ROUTING})
    assert load_config().dp_routing == "cache"
    assert alone.manager.block_pool.event_log is None
    options = SchedulerOptions(**vars(options) | {"is_data_parallel": True})
    unset = make_engine(lambda: cell.layout, options, None, cell.environment)
    assert load_config().dp_routing is None
    assert unset.manager.block_pool.event_log is None
