# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's AscendStore: the real hash granularity, keys that name the layout, no null blocks.

A pool shared by many engines has no handshake: what must not be mixed up must differ in its keys.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.utils.math_utils import round_up
from vllm.v1.core.kv_cache_utils import BlockHash

from vllm_ascend.core.connectors.connector_rules import (
    KNOWS_GRANULES,
    KNOWS_ROWS,
    TAKES_TAILS_ALONE,
    TAKES_WHOLE_BLOCK_TAILS,
)
from vllm_ascend.core.connectors.failed_loads import is_affected
from vllm_ascend.core.layout.specs import group_specs, is_compressed
from vllm_ascend.core.pool.block_pool_methods import NULL_BLOCK_ID
from vllm_ascend.kv_transfer import layout_contract
from vllm_ascend.kv_transfer.layout_contract import KVTransferContract
from vllm_ascend.kv_transfer.store_loads import CheckedStore, PageAddresses
from vllm_ascend.kv_transfer.store_pages import blocks_of_tails, stored_tokens
from vllm_ascend.patch.features import UPSTREAM_CONNECTORS
from vllm_ascend.patch.table import Add, Patch, Wrap, changes

_PACKAGE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"
_DATABASE = "config_data:ChunkedTokenDatabase"
# Attribute of a database of keys: whether requests' blocks may be null blocks.
_HAS_NULL_BLOCKS = "has_null_blocks"
_logger = init_logger("vllm.plugins.vllm_ascend_backport")
# Attribute of a scheduler: whether there are drafts.
_HAS_DRAFTS = "has_drafts"
# Attribute of a hit: tokens up to the end of its last page.
_WHOLE_PAGES = "kvpool_store_skip_tokens"
_PLACE_DOMAIN = b"vllm-ascend-backport-place-in-granule\0"


def _change(name: str, **others: Any) -> Callable[[Callable], Wrap]:
    return changes(f"{_PACKAGE}.{name}", UPSTREAM_CONNECTORS, **others)


@_change("pool_scheduler:KVPoolScheduler.__init__")
def wrap_scheduler_init(self, vllm_config: VllmConfig, *args, original: Callable, **kwargs) -> None:
    """It takes the smallest group's rows for a hash's tokens."""
    with _no_explicit_hash_size(vllm_config):
        original(self, vllm_config, *args, **kwargs)
    if self.use_hybrid:
        _take_granules(self, vllm_config)
        setattr(self, _HAS_DRAFTS, vllm_config.speculative_config is not None)


@_change("pool_worker:KVPoolWorker.__init__")
def wrap_worker_init(self, vllm_config: VllmConfig, *args, original: Callable, **kwargs) -> None:
    """It takes rows for a hash's tokens as well, and its keys name no layout."""
    with _no_explicit_hash_size(vllm_config):
        original(self, vllm_config, *args, **kwargs)
    if self.use_hybrid:
        contract = _take_granules(self, vllm_config)
        self.token_database.hash_block_size = contract.hash_block_size
        if not self.use_layerwise:  # else the scheduler makes the keys itself
            _name_layout(self, contract, vllm_config)
    # Without groups it takes block ids as they are: 0 is a block like any other then.
    setattr(self.token_database, _HAS_NULL_BLOCKS, self.kv_cache_config is not None)


@contextmanager
def _no_explicit_hash_size(vllm_config: VllmConfig) -> Iterator[None]:
    """Hide an explicit size within: upstream refuses one that is coarser than its finest block."""
    cache_config = vllm_config.cache_config
    explicit, cache_config.hash_block_size = cache_config.hash_block_size, None
    try:
        yield
    finally:
        cache_config.hash_block_size = explicit


def _take_granules(built: Any, vllm_config: VllmConfig) -> KVTransferContract:
    """Give a scheduler or worker the real hash granularity; return the layout."""
    contract = layout_contract.describe(built.kv_cache_config, vllm_config)
    built.hash_block_size = contract.hash_block_size
    return contract


def _name_layout(worker: Any, contract: KVTransferContract, vllm_config: VllmConfig) -> None:
    """Let the keys of a worker's pages name what the pages hold."""
    worker.m_store = CheckedStore(worker.m_store)
    if (coordinator := getattr(worker, "cache_coordinator", None)) is not None:
        coordinator.hash_block_size = contract.hash_block_size
    # A page has all layers that a rank has of a group, draft layers as well.
    drafts = vllm_config.speculative_config
    name = f"@layout:{contract.digest}@pp:{worker.pp_size}"
    name += f"@drafts:{drafts.method if drafts else None}"
    metadata = worker.metadata
    # The database makes its keys from the same objects.
    for group in metadata if isinstance(metadata, list) else [metadata]:
        group.model_name += name


@_change(
    "config_data:get_block_hashes",
    aliases=tuple(
        f"{_PACKAGE}.{module}:get_block_hashes"
        for module in ("coordinator", "kv_transfer", "pool_scheduler", "pool_worker")
    ),
)
def wrap_get_block_hashes(
    block_hashes: Sequence[Any],
    group_block_size: int,
    hash_block_size: int,
    *args,
    original: Callable,
    **kwargs,
) -> Sequence[Any]:
    """State blocks are finer than a granule, so a hash names several.

    Return a name per block; a hash that covers several blocks names them by place.
    """
    if group_block_size >= hash_block_size:
        return original(block_hashes, group_block_size, hash_block_size, *args, **kwargs)
    places, remainder = divmod(hash_block_size, group_block_size)
    if remainder:
        raise ValueError(
            f"hash_block_size ({hash_block_size}) must be a multiple of the tokens per block "
            f"({group_block_size}), or divide it"
        )
    return _Places(block_hashes, places)


class _Places(Sequence[BlockHash]):
    """The names of blocks of which ``places`` have one hash, made as they are asked for.

    A prompt has some thousand state blocks, of which only those of tails are looked up.
    """

    def __init__(self, granules: Sequence[BlockHash | str], places: int) -> None:
        self._granules, self._places = granules, places

    def __len__(self) -> int:
        return len(self._granules) * self._places

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        granule, place = divmod(index % len(self), self._places)
        return _place(self._granules[granule], place, self._places)


def _place(granule: BlockHash | str, place: int, places: int) -> BlockHash:
    content = bytes.fromhex(granule) if isinstance(granule, str) else bytes(granule)
    suffix = place.to_bytes(4, "big") + places.to_bytes(4, "big")
    return BlockHash(hashlib.sha256(_PLACE_DOMAIN + content + suffix).digest())


def _leave_out_null_blocks(self, *args, original: Callable, **kwargs) -> Iterator[Any]:
    """After a hit it stores windows' null blocks under wrong keys."""
    for chunk in original(self, *args, **kwargs):  # each ends with the id of its block
        if chunk[-1] > NULL_BLOCK_ID or not getattr(self, _HAS_NULL_BLOCKS):
            yield chunk


@_change("pool_worker:KVPoolWorker.lookup_scheduler")
def wrap_lookup_scheduler(
    self,
    token_len,
    block_hashes,
    kv_cache_group_ids=None,
    use_layerwise=False,
    *,
    original: Callable,
) -> int:
    """It asks for windows' pages only, and reads lost pages of other groups.

    Return how many tokens can be loaded: every page that is read is there.
    """
    if not self.use_hybrid or use_layerwise or any(self.group_uses_align_state):
        return original(self, token_len, block_hashes, kv_cache_group_ids, use_layerwise)
    try:
        return stored_tokens(self, token_len, block_hashes)
    except Exception:  # of a store's client, of any kind; without the store there are no hits
        _logger.exception("the pool cannot be asked")
        return 0


@_change(f"{_DATABASE}.prepare_value")
def wrap_prepare_value(
    self, *args, original: Callable, **kwargs
) -> tuple[PageAddresses, list[int], int]:
    """Addresses do not tell which block lost its page."""
    addresses, sizes, block_id = original(self, *args, **kwargs)
    return PageAddresses(addresses, block_id), sizes, block_id


@_change("ascend_store_connector:AscendStoreConnector.__init__")
def wrap_connector_init(self, *args, original: Callable, **kwargs) -> None:
    """vllm-ascend reads blocks whose pages were not loaded."""
    original(self, *args, **kwargs)
    worker = getattr(self, "connector_worker", None)  # the scheduler's own has none
    store = getattr(worker, "m_store", None)
    if not isinstance(store, CheckedStore):
        return
    known = self.get_block_ids_with_load_errors

    def get_block_ids_with_load_errors() -> set[int]:
        """Return the blocks whose page could not be loaded since the last call."""
        return known() | store.take_lost()

    # Of 0.20.2rc's connector it is vLLM's, for all connectors.
    self.get_block_ids_with_load_errors = get_block_ids_with_load_errors


@_change("pool_worker:KVPoolWorker.wait_for_save")
def wrap_wait_for_save(self, connector_metadata, *, original: Callable) -> Any:
    """It also stores pages that a failed step has not computed.

    Store what the step has computed.
    """
    if _step_has_failed():
        _logger.error("AscendStore: the step has failed, nothing of it is stored")
        return None
    if isinstance(self.m_store, CheckedStore) and self.m_store.lost:
        for request in connector_metadata.requests:
            if is_affected(request.block_ids_by_group, self.m_store.lost):
                # It is still told that the request has been dealt with.
                request.block_ids_by_group = [
                    [NULL_BLOCK_ID] * len(table) for table in request.block_ids_by_group
                ]
    return original(self, connector_metadata)


def _step_has_failed() -> bool:
    # It is called in a `finally` around the step.
    return sys.exc_info()[0] is not None


@_change("pool_scheduler:KVPoolScheduler.get_num_new_matched_tokens")
def wrap_get_num_new_matched_tokens(
    self, request, num_computed_tokens, *, original: Callable
) -> tuple[int, bool]:
    """A draft layer's last row depends on a token that no key names.

    Leave the last token of a hit to be computed where there are drafts.
    """
    num_tokens, is_async = original(self, request, num_computed_tokens)
    if not num_tokens or not self.use_hybrid or self.use_layerwise:
        return num_tokens, is_async
    hit = self.load_specs[request.request_id]
    if not hasattr(hit, _WHOLE_PAGES):  # earlier releases do not remember it
        setattr(
            hit,
            _WHOLE_PAGES,
            round_up(hit.kvpool_cached_tokens, self.cache_transfer_granularity),
        )
    is_whole = hit.kvpool_cached_tokens == getattr(hit, _WHOLE_PAGES)
    if is_whole and _reads_draft_rows(self):  # else the last token is left out already
        hit.kvpool_cached_tokens -= 1
        num_tokens -= 1
    return num_tokens, is_async


def _reads_draft_rows(scheduler: Any) -> bool:
    """Whether drafts are made from rows that DeepSeek-V4 has in the pool."""
    specs = group_specs(scheduler.kv_cache_config)
    return getattr(scheduler, _HAS_DRAFTS) and any(map(is_compressed, specs))


@_change("pool_scheduler:KVPoolScheduler.build_connector_meta")
def wrap_build_connector_meta(self, scheduler_output, *, original: Callable) -> Any:
    """It stores blocks that windows have left, now with other requests' rows."""
    _forget_tables_of_resumed(self, scheduler_output.scheduled_cached_reqs.resumed_req_ids)
    metadata = original(self, scheduler_output)
    if not self.use_hybrid or self.use_layerwise:
        return metadata
    for load in filter(None, (request.load_spec for request in metadata.requests)):
        load.kvpool_cached_tokens = getattr(load, _WHOLE_PAGES)
    cached = scheduler_output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
    for request in metadata.requests:
        # Of one that waits for its load, all blocks are fresh from the pool.
        if request.req_id in computed:
            request.block_ids_by_group = blocks_of_tails(
                self, request.block_ids_by_group, computed[request.req_id]
            )
    return metadata


def _forget_tables_of_resumed(scheduler: Any, resumed: Iterable[str]) -> None:
    """Let requests that start anew be known as preempted, whose blocks are all new.

    vLLM tells of those that it preempts in a step, not of one whose load has failed between two.
    """
    for request_id in resumed:
        if request_id not in scheduler._preempted_req_ids:
            scheduler._preempted_req_ids.add(request_id)
            scheduler._request_trackers.pop(request_id, None)


_DECLARED = {
    KNOWS_GRANULES: "Takes hashes of any size; only loads need whole blocks.",
    KNOWS_ROWS: "Counts the tokens of compressed blocks by their ratio.",
    TAKES_TAILS_ALONE: "With these patches it is told of tails alone.",
    TAKES_WHOLE_BLOCK_TAILS: "Its hits end with whole blocks and need all their windows' blocks.",
}

PATCHES: tuple[Patch, ...] = (
    *(
        Add(
            target=f"{_PACKAGE}.ascend_store_connector:AscendStoreConnector.{attribute}",
            replacement=True,
            why=why,
            **UPSTREAM_CONNECTORS,
        )
        for attribute, why in _DECLARED.items()
    ),
    Add(
        target=f"{_PACKAGE}.{_DATABASE}.{_HAS_NULL_BLOCKS}",
        replacement=False,
        why="Leaves null blocks out where the worker knows its groups.",
        **UPSTREAM_CONNECTORS,
    ),
    wrap_scheduler_init,
    wrap_worker_init,
    wrap_get_block_hashes,
    _change(f"{_DATABASE}.process_tokens_with_block_ids")(_leave_out_null_blocks),
    _change(f"{_DATABASE}.process_token_key_strings_with_block_ids")(_leave_out_null_blocks),
    wrap_lookup_scheduler,
    wrap_prepare_value,
    wrap_connector_init,
    wrap_wait_for_save,
    wrap_get_num_new_matched_tokens,
    wrap_build_connector_meta,
)
