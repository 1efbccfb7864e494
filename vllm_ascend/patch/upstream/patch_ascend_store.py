# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's AscendStore: the real hash granularity, keys that name the layout, no null blocks.

A pool shared by many engines has no handshake: what must not be mixed up must differ in its keys.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vllm.v1.core.kv_cache_utils import BlockHash

from vllm_ascend.core.connectors import kv_transfer_contract
from vllm_ascend.core.connectors.connector_rules import KNOWS_GRANULES
from vllm_ascend.core.connectors.kv_transfer_contract import KVTransferContract
from vllm_ascend.patch.features import UPSTREAM_CONNECTORS
from vllm_ascend.patch.table import Add, Patch, Wrap, changes

_PACKAGE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"
# Attribute of a database of keys: whether requests' blocks may be null blocks.
_HAS_NULL_BLOCKS = "has_null_blocks"
_PLACE_DOMAIN = b"vllm-ascend-backport-place-in-granule\0"


def _change(name: str, **others: Any) -> Callable[[Callable], Wrap]:
    return changes(f"{_PACKAGE}.{name}", UPSTREAM_CONNECTORS, **others)


@_change("pool_scheduler:KVPoolScheduler.__init__")
def wrap_scheduler_init(original: Callable) -> Callable:
    """It takes the smallest group's rows for the tokens of a request hash; the hash granularity is
    the granule."""
    return _wrap_init(original, lambda scheduler, contract: None)


@_change("pool_worker:KVPoolWorker.__init__")
def wrap_worker_init(original: Callable) -> Callable:
    """It takes the smallest group's rows for the tokens of a request hash; the hash granularity is
    the granule. Keys do not tell layouts apart: engines with other block sizes or pages would
    read each other's."""

    def name_layout(worker: Any, contract: KVTransferContract) -> None:
        worker.token_database.hash_block_size = contract.hash_block_size
        # The database makes its keys from the same object.
        worker.metadata.model_name += f"@layout:{contract.digest}"

    hash_granules = _wrap_init(original, name_layout)

    def __init__(self, *args, **kwargs) -> None:
        hash_granules(self, *args, **kwargs)
        # Without groups it takes block ids as they are: 0 is a block like any other then.
        setattr(self.token_database, _HAS_NULL_BLOCKS, self.kv_cache_config is not None)

    return __init__


def _wrap_init(original: Callable, finish: Callable[[Any, KVTransferContract], None]) -> Callable:
    """Give the object the real hash granularity; ``finish`` does the rest."""
    signature = inspect.signature(original)

    def __init__(self, *args, **kwargs) -> None:
        vllm_config = signature.bind(self, *args, **kwargs).arguments["vllm_config"]
        # Upstream refuses an explicit size that is coarser than its finest block.
        cache_config = vllm_config.cache_config
        explicit, cache_config.hash_block_size = cache_config.hash_block_size, None
        try:
            original(self, *args, **kwargs)
        finally:
            cache_config.hash_block_size = explicit
        if self.use_hybrid:
            contract = kv_transfer_contract.describe(self.kv_cache_config, vllm_config)
            self.hash_block_size = contract.hash_block_size
            finish(self, contract)

    return __init__


@_change(
    "config_data:get_block_hashes",
    aliases=(f"{_PACKAGE}.kv_transfer:get_block_hashes",),
)
def wrap_get_block_hashes(original: Callable) -> Callable:
    """State blocks are finer than a granule, so a hash names several of them."""

    def get_block_hashes(
        block_hashes: Sequence[Any], group_block_size: int, hash_block_size: int
    ) -> Sequence[Any]:
        """Return a name per block; a hash that covers several blocks names them by place."""
        if group_block_size >= hash_block_size:
            return original(block_hashes, group_block_size, hash_block_size)
        places, remainder = divmod(hash_block_size, group_block_size)
        if remainder:
            raise ValueError(
                f"hash_block_size ({hash_block_size}) must be a multiple of the tokens per block "
                f"({group_block_size}), or divide it"
            )
        return [_place(granule, i, places) for granule in block_hashes for i in range(places)]

    return get_block_hashes


def _place(granule: BlockHash | str, place: int, places: int) -> BlockHash:
    content = bytes.fromhex(granule) if isinstance(granule, str) else bytes(granule)
    suffix = place.to_bytes(4, "big") + places.to_bytes(4, "big")
    return BlockHash(hashlib.sha256(_PLACE_DOMAIN + content + suffix).digest())


@_change("config_data:ChunkedTokenDatabase.process_tokens_with_block_ids")
def wrap_process_tokens_with_block_ids(original: Callable) -> Callable:
    """Behind a hit, windows have null blocks; their page was stored under the keys of what it is
    not."""

    def process_tokens_with_block_ids(self, *args, **kwargs) -> Iterator[Any]:
        for start, end, key, block_id in original(self, *args, **kwargs):
            if block_id > 0 or not getattr(self, _HAS_NULL_BLOCKS):
                yield start, end, key, block_id

    return process_tokens_with_block_ids


PATCHES: tuple[Patch, ...] = (
    Add(
        target=f"{_PACKAGE}.ascend_store_connector:AscendStoreConnector.{KNOWS_GRANULES}",
        replacement=True,
        why="With the patches below it reads hashes of any size, and it loads whole blocks only "
        "where a request loads.",
        **UPSTREAM_CONNECTORS,
    ),
    Add(
        target=f"{_PACKAGE}.config_data:ChunkedTokenDatabase.{_HAS_NULL_BLOCKS}",
        replacement=False,
        why="Null blocks are left out where the worker knows its KV cache groups.",
        **UPSTREAM_CONNECTORS,
    ),
    wrap_scheduler_init,
    wrap_worker_init,
    wrap_get_block_hashes,
    wrap_process_tokens_with_block_ids,
)
