# SPDX-License-Identifier: Apache-2.0
"""KV events: a router that follows them knows exactly what is cached, and under which tokens."""

from __future__ import annotations

from collections import Counter

import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash

from tests.e2e.core.configurations import grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.workload import Workload
from vllm_ascend.replay.scheduler import SchedulerOptions

_NAMES = (
    "gemma-plain-spare-0",
    "dsv4-stock-plain-retention-N",
    "dsv4-rows-plain-retention-0",
    "dsv4-rows-mtp1-partial-0",
    "dsv4-rows-plain-best",
    "dsv4-a3-32-plain-best",
)


class Router:
    """Follows events and nothing else."""

    def __init__(self) -> None:
        self.cached: Counter[tuple[int, object]] = Counter()
        # (group, name) -> the tokens that it was said to stand for, and what came before them
        self.contents: dict[tuple[int, object], tuple] = {}

    def follow(self, events: list) -> None:
        """Take in a batch."""
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.cached.clear()
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    self.cached[event.group_idx, name] -= 1
            else:
                self._store(event)

    def _store(self, event: BlockStored) -> None:
        assert len(event.token_ids) == len(event.block_hashes) * event.block_size
        parent = event.parent_block_hash
        for i, name in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size])
            extra = event.extra_keys[i] if event.extra_keys else None
            content = (parent, tokens, extra, event.lora_id)
            key = (event.group_idx, name)
            assert self.contents.setdefault(key, content) == content, "a name of two contents"
            self.cached[key] += 1
            parent = name


def what_is_cached(engine: Engine) -> Counter[tuple[int, object]]:
    """By asking the pool."""
    return Counter(
        (get_group_id(key), maybe_convert_block_hash(get_block_hash(key)))
        for block in engine.manager.block_pool.blocks
        if (key := block.block_hash) is not None
    )


@pytest.mark.parametrize("name", _NAMES)
def test_events_tell_what_is_cached(name: str, make_engine: MakeEngine) -> None:
    cell = next(cell for cell in grid() if str(cell) == name)
    options = vars(cell.options(2.0)) | {"enable_kv_cache_events": True}
    engine = make_engine(
        lambda: cell.layout, SchedulerOptions(**options), cell.oracle(1), cell.environment
    )
    pool, router = engine.manager.block_pool, Router()

    take_events = pool.take_events

    def publish() -> list:
        """The scheduler takes them after every step."""
        events = take_events()
        router.follow(events)
        return events

    def compare() -> None:
        pool.take_events()
        assert +router.cached == what_is_cached(engine)

    pool.take_events, engine.check = publish, compare
    Workload(engine, cell.traffic, seed=1).run(300, check_every=1)
    assert router.contents
