# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's AscendStoreConnector beside real schedulers, over a pool in this process.

Its keys, masks, threads and addresses are its own. In place of a store's client, bytes are copied
by address, and what is copied is the oracle's shadow memory: so the oracle proves that what was
loaded are the right rows, and what was stored can be compared with the tokens of its key.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.core.configurations import Configuration
from tests.upstream.store_client import StoreClient
from vllm_ascend.core.connectors.connector_rules import KNOWS_GRANULES
from vllm_ascend_evaluation.oracle.contents import digests_of
from vllm_ascend_evaluation.oracle.groups import Kind

MODULE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"


class Pool(StoreClient):
    """What all engines of a pool see: pages by key."""

    pages: dict[str, tuple[bytes, ...]] = {}

    def exists(self, keys: Sequence[str]) -> list[int]:
        """Return 1 for a key that has a page, else 0."""
        return [int(key in self.pages) for key in keys]

    def put(
        self, keys: Sequence[str], addresses: Sequence[list[int]], sizes: Sequence[list[int]]
    ) -> None:
        """Store pages; what is there already stays."""
        for key, places, lengths in zip(keys, addresses, sizes, strict=True):
            assert lengths, f"{key} is stored without a page"
            parts = map(ctypes.string_at, places, lengths)
            self.pages.setdefault(key, tuple(parts))

    def get(
        self, keys: Sequence[str], addresses: Sequence[list[int]], sizes: Sequence[list[int]]
    ) -> list[int]:
        """Load pages, whole ones."""
        for key, places, lengths in zip(keys, addresses, sizes, strict=True):
            page = self.pages[key]
            assert [len(part) for part in page] == lengths, f"{key} is loaded in part"
            for place, part in zip(places, page, strict=True):
                ctypes.memmove(place, part, len(part))
        return [0] * len(keys)


def stand_in_for_hosts(monkeypatch: Any) -> None:
    """Replace what AscendStore takes from a running NPU worker, its sockets, and the store."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store import (
        ascend_store_connector,
        pool_scheduler,
        pool_worker,
    )

    one = SimpleNamespace(world_size=1, rank_in_group=0)
    for name, value in {
        "get_tensor_model_parallel_rank": 0,
        "get_tensor_model_parallel_world_size": 1,
        "get_decode_context_model_parallel_rank": 0,
        "get_decode_context_model_parallel_world_size": 1,
        "get_pcp_group": one,
    }.items():
        monkeypatch.setattr(pool_worker, name, lambda value=value: value)
    # The shadow memory does not begin with a page of the device's.
    if hasattr(pool_worker.KVPoolWorker, "_align_kv_ptrs"):
        monkeypatch.setattr(pool_worker.KVPoolWorker, "_align_kv_ptrs", lambda *_: None)
    monkeypatch.setattr(pool_scheduler, "LookupKeyClient", lambda *_: None)
    monkeypatch.setattr(ascend_store_connector, "LookupKeyServer", lambda *_: None)
    pool = {"name": Pool.__name__, "path": __name__}
    monkeypatch.setitem(pool_worker.backend_map, "pool", pool)
    monkeypatch.setattr(Pool, "pages", {})


class Instance(ConnectedEngine):
    """An engine that has its prefix cache and the pool."""

    def __init__(
        self, cell: Configuration, room: float = 4.0, seed: int = 0, **extra_config: Any
    ) -> None:
        transfer = KVTransferConfig(
            kv_connector="AscendStoreConnector",
            kv_connector_module_path=f"{MODULE}.ascend_store_connector",
            kv_role="kv_both",
            kv_connector_extra_config={"backend": "pool", **extra_config},
        )
        oracle = cell.oracle(seed)
        super().__init__(cell.layout, cell.options(room), transfer, oracle)
        connector = self.scheduler.connector
        assert getattr(connector, KNOWS_GRANULES)
        store_scheduler = connector.connector_scheduler
        ask = store_scheduler.get_num_new_matched_tokens
        # Its socket to the first worker.
        store_scheduler.client = SimpleNamespace(lookup=self._look_up)

        def note(request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            answer = ask(request, num_computed_tokens)
            self.worker.connector.hits[request.request_id] = num_computed_tokens + answer[0]
            return answer

        store_scheduler.get_num_new_matched_tokens = note

    def _look_up(
        self, token_len: int, hashes: Sequence[bytes], group_ids: list[int], **others: int
    ) -> int:
        as_text = [name.hex() for name in hashes]
        return self.pool_worker.lookup_scheduler(token_len, as_text, group_ids, **others)

    @property
    def num_loaded(self) -> int:
        """How many tokens the pool has brought to requests."""
        return self.worker.connector.num_loaded

    @property
    def pool_worker(self) -> Any:
        """AscendStore's worker."""
        return self.worker.connector.connector_worker

    def make_worker_connector(self) -> Any:
        """Return the worker's half, with the shadow memory registered."""
        from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store import (
            ascend_store_connector,
        )

        config, memory = self.scheduler.kv_cache_config, self.worker.memory
        caches = {}
        for group_id, group in enumerate(config.kv_cache_groups):
            planes = [memory.rows[group_id]]
            if group_id in memory.draft_rows:
                planes.append(memory.draft_rows[group_id])
            tensors = tuple(torch.from_numpy(plane.view(np.int64)) for plane in planes)
            caches |= dict.fromkeys(group.layer_names, tensors)  # they share what they have
        connector = ascend_store_connector.AscendStoreConnector(
            self.vllm_config, KVConnectorRole.WORKER, config
        )
        connector.register_kv_caches(caches)
        return Watched(connector)

    def waits_for_pages(self) -> bool:
        """Whether pages have been promised to a request that are not loaded yet."""
        return bool(self.scheduler.connector.connector_scheduler.load_specs) or bool(
            self.worker.connector.loads
        )

    def wrong_pages(self) -> list[str]:
        """Return what the pool has under keys of this engine's requests and is not their rows."""
        wrong = []
        for request in self.requests.values():
            digests = digests_of(
                request,
                cache_salt=request.cache_salt,
                output_token_ids=list(request.output_token_ids),
            ).array
            for group_id, group in enumerate(self.worker._groups):
                rules = group.rules
                ratio = rules.ratio if rules.kind is Kind.FULL else 1
                for start, end, key in self._keys(request, group_id):
                    if key not in Pool.pages:
                        continue
                    stored = np.frombuffer(Pool.pages[key][0], np.uint64)
                    expected = digests[(start + 1) * ratio : end * ratio + 1 : ratio]
                    if not np.array_equal(stored, expected):
                        wrong.append(f"{request.request_id}, group {group_id}, rows {start}-{end}")
        return wrong

    def _keys(self, request: Any, group_id: int) -> Iterator[tuple[int, int, str]]:
        """Yield (first row, end, key) of a request's pages in a group."""
        database = self.pool_worker.token_database
        as_text = getattr(database, "process_token_key_strings", None)
        process = as_text or database.process_tokens
        for start, end, key, *_ in process(
            request.num_tokens, request.block_hashes, kv_cache_group_id=group_id
        ):
            yield start, end, key if as_text else key.to_string()


class Watched:
    """A worker's connector that tells the oracle which blocks it writes, and when it stores.

    Attributes:
        hits: request id -> tokens of it that the cache and the pool have, as the scheduler knows.
        loads: request id -> what is being loaded.
        num_loaded: tokens that have been loaded.
    """

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self.hits: dict[str, int] = {}
        self.loads: dict[str, Any] = {}
        self.num_loaded = 0
        self.worker: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def start_load_kv(self, forward_context: Any) -> None:
        """Load, or start to."""
        is_async = self._connector.connector_worker.load_async
        requests = self._connector._connector_metadata.requests
        loads = {r.req_id: r for r in requests if r.load_spec and r.load_spec.can_load}
        for request_id, request in loads.items():
            for group_id, ids in enumerate(self._blocks(request)):
                self.worker.expect(request_id, group_id, ids, runs_now=not is_async)
        self._connector.start_load_kv(forward_context)
        self.loads |= loads
        if not is_async:
            self._have_loaded(set(loads))

    def get_finished(self, finished: set[str]) -> tuple[set[str], set[str]]:
        """Store what the step has computed, as a runner does, and return who is done."""
        self._connector.wait_for_save()
        sent, received = self._connector.get_finished(finished)
        self._have_loaded(received)
        return sent, received

    def _blocks(self, request: Any) -> list[list[int]]:
        """Return a request's blocks of the tokens that it loads, per group."""
        start, end, blocks = request.load_spec.vllm_cached_tokens, self.hits[request.req_id], []
        for group, table in zip(self.worker._groups, request.block_ids_by_group, strict=True):
            block_tokens = group.rules.tokens_per_block
            loaded = table[start // block_tokens : -(-end // block_tokens)]
            blocks.append([block_id for block_id in loaded if block_id])
        return blocks

    def _have_loaded(self, request_ids: set[str]) -> None:
        for request in map(self.loads.pop, request_ids):
            blocks, hit = self._blocks(request), self.hits[request.req_id]
            self.num_loaded += hit - request.load_spec.vllm_cached_tokens
            self.worker.has_loaded({block_id for ids in blocks for block_id in ids})
            # Pages are loaded whole; rows behind the hit are computed all the same.
            for group_id, (group, ids) in enumerate(zip(self.worker._groups, blocks, strict=True)):
                inside = hit % group.rules.tokens_per_block
                if inside and ids:
                    ratio = group.rules.ratio if group.rules.kind is Kind.FULL else 1
                    self.worker.memory.spoil(ids[-1], group_id, inside // ratio)
