# SPDX-License-Identifier: Apache-2.0
"""KV events: every one describes itself truly, and together they tell what is cached."""

from __future__ import annotations

from collections import defaultdict

import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, hash_block_tokens

from tests.e2e.core.configurations import grid
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.e2e.core.workload import Workload
from vllm_ascend.core.pool.exact_hashes import KINDS_ARE_HASHED
from vllm_ascend.core.retention.request_record import WaitingTails
from vllm_ascend.dry_run.scheduler import SchedulerOptions

_NAMES = (
    "gemma-plain-spare-0",
    "gemma-mtp1-retention-0",
    "dsv4-stock-plain-retention-N",
    "dsv4-rows-plain-retention-0",
    "dsv4-rows-mtp1-partial-0",
    "dsv4-rows-plain-best",
    "dsv4-a3-32-plain-best",
)
_hash = get_hash_fn_by_name("sha256")


def hashed_keys(event: BlockStored, index: int, parent: object) -> tuple | None:
    """Return what the name covers besides tokens.

    That is an empty adapter's place before a lone salt. Later releases name each key's kind.
    """
    assert event.extra_keys is not None
    keys = event.extra_keys[index]
    if KINDS_ARE_HASHED and keys is not None:
        adapter = [("lora", keys[0], "/nowhere")] if event.lora_id is not None else []
        return (*adapter, *(("cache_salt", key) for key in keys[len(adapter) :]))
    is_salt_alone = parent is None and keys is not None and event.lora_id is None
    return (None, *keys) if is_salt_alone else keys


class Router:
    """Follows events and nothing else, and hashes tokens itself.

    Attributes:
        told: group -> names that were stored and not removed since.
        num_hashed: units whose name was computed anew.
    """

    def __init__(self, hash_tokens: int) -> None:
        self.told: defaultdict[int, set[bytes]] = defaultdict(set)
        self.num_hashed = 0
        self._hash_tokens = hash_tokens
        # (group, name) -> the tokens that it was said to stand for, and what came before them
        self._contents: dict[tuple[int, bytes], tuple] = {}

    def follow(self, events: list) -> None:
        """Take in a batch."""
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.told.clear()
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    self.told[event.group_idx].remove(name)  # an error if it was not there
            elif event.block_hashes:
                self._store(event)

    def _store(self, event: BlockStored) -> None:
        size, parent = event.block_size, event.parent_block_hash
        assert len(event.token_ids) == len(event.block_hashes) * size
        assert event.extra_keys is not None
        assert len(event.extra_keys) == len(event.block_hashes)
        for i, name in enumerate(event.block_hashes):
            tokens = tuple(event.token_ids[i * size : (i + 1) * size])
            content = (parent, tokens, event.extra_keys[i], event.lora_id)
            key = (event.group_idx, name)
            assert self._contents.setdefault(key, content) == content, "a name of two contents"
            assert name not in self.told[event.group_idx], "told twice"
            self.told[event.group_idx].add(name)
            if size == self._hash_tokens:
                assert name == hash_block_tokens(
                    _hash, parent, tokens, hashed_keys(event, i, parent)
                )
                self.num_hashed += 1
            parent = name


def cached_in(engine: Engine, group: int) -> set[bytes]:
    """By asking the pool: the names of a group's blocks."""
    keys = (block.block_hash for block in engine.manager.block_pool.blocks)
    return {get_block_hash(key) for key in keys if key is not None and get_group_id(key) == group}


def waiting_in(engine: Engine, group: int) -> set[bytes]:
    """The names of tails that are told now, and entered when the next step starts."""
    coordinator, pool = engine.manager.coordinator, engine.manager.block_pool
    names = set()
    for record in coordinator.ledger.records.values():
        for entry in record.waiting:
            if isinstance(entry, WaitingTails) and entry.group.id == group:
                blocks = entry.group.manager.req_to_blocks[record.request.request_id]
                where = (entry.group.block_tokens, group)
                keys = [
                    pool.key_of(record.request, ordinal, *where)
                    for ordinal in entry.ordinals
                    if not blocks[ordinal].is_null
                ]
                names |= set(map(get_block_hash, keys))
    return names


@pytest.mark.parametrize("name", _NAMES)
def test_events_tell_what_is_cached(
    name: str, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, tokens, parents and extra keys fit each other; each name is told once while cached."""
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    cell = next(cell for cell in grid() if str(cell) == name)
    options = vars(cell.options(2.0)) | {"enable_kv_cache_events": True}
    engine = make_engine(
        lambda: cell.layout, SchedulerOptions(**options), cell.oracle(1), cell.environment
    )
    coordinator, pool = engine.manager.coordinator, engine.manager.block_pool
    router = Router(coordinator.hash_block_size)
    take_events = pool.take_events

    def publish() -> list:
        """The scheduler takes them after every step."""
        events = take_events()
        router.follow(events)
        return events

    def compare() -> None:
        pool.take_events()
        for group in coordinator.groups.all:
            cached = cached_in(engine, group.id)
            if group.is_downward_closed:
                # In granules, and so by more names than blocks have; but never one in vain.
                assert cached <= router.told[group.id]
                assert cached or group.ends_inside or not router.told[group.id]
            else:
                assert router.told[group.id] == cached | waiting_in(engine, group.id)

    pool.take_events, engine.check = publish, compare
    Workload(engine, cell.traffic, seed=1).run(300, check_every=1)
    assert router.num_hashed
