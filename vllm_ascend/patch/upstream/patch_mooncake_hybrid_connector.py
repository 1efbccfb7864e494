# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's hybrid Mooncake connector: layouts are compared, failed pulls are told.

Its prefill side sends its metadata when a decode side asks for the first time; the description of
the KV cache travels along. Both threads of the connector go on as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from vllm_ascend.core.connectors import kv_transfer_contract
from vllm_ascend.core.connectors.connector_rules import KNOWS_GRANULES
from vllm_ascend.core.connectors.kv_transfer_contract import ContractError, KVTransferContract
from vllm_ascend.patch.features import UPSTREAM_CONNECTORS
from vllm_ascend.patch.table import Add, Patch, Wrap, changes

_MODULE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector"
_CONTRACT_FIELD = "kv_transfer_contract"

# Of the worker whose threads are being started.
_CONTRACT: ContextVar[KVTransferContract | None] = ContextVar("contract", default=None)


@contextmanager
def _contract_of(worker: Any) -> Iterator[None]:
    token = _CONTRACT.set(
        kv_transfer_contract.describe(worker.kv_cache_config, worker.vllm_config)
        if worker.use_hybrid
        else None
    )
    try:
        yield
    finally:
        _CONTRACT.reset(token)


class ContractDecoder:
    """Decodes a prefill side's metadata, after it was found to fit.

    vllm-ascend's own decoder passes over the field that it does not know, so a decode side
    without this patch still understands.
    """

    def __init__(
        self, decoder: Any, contract: KVTransferContract, page_bytes: list[int] | None
    ) -> None:
        """Prepare.

        Args:
            decoder: vllm-ascend's.
            contract: This side's.
            page_bytes: Bytes of a block in every registered tensor, in order; ``None`` where the
                other side holds only some of the layers.
        """
        self._decoder = decoder
        self._contract = contract
        self._page_bytes = page_bytes

    def decode(self, encoded: bytes) -> Any:
        """Return the metadata.

        Raises:
            ContractError: The other side lays its KV cache out differently.
        """
        metadata = self._decoder.decode(encoded)
        remote_name = f"prefill engine {metadata.engine_id} on {metadata.local_ip}"
        described = msgspec.msgpack.decode(encoded).get(_CONTRACT_FIELD)
        if described is None:
            self._check_what_it_says(metadata, remote_name)
        else:
            remote = KVTransferContract.from_dict(described)
            kv_transfer_contract.check(self._contract, remote, remote_name=remote_name)
        if self._page_bytes is not None and list(metadata.block_lens) != self._page_bytes:
            raise ContractError(
                f"KV transfer refused: {remote_name} holds other tensors: bytes of a block in each "
                f"{self._page_bytes} here, {list(metadata.block_lens)} there"
            )
        return metadata

    def _check_what_it_says(self, metadata: Any, remote_name: str) -> None:
        """The other side runs without this patch: it tells its block size only."""
        here, there = self._contract.block_size, metadata.block_size
        if here != there:
            raise ContractError(
                f"KV transfer refused: {remote_name} has block_size {there}, here it is {here}. "
                "Start both sides with the same --block-size"
            )


@changes(
    f"{_MODULE}:MooncakeConnectorWorker.register_kv_caches", "30cf1f3b7c0ff1b6", UPSTREAM_CONNECTORS
)
def wrap_register_kv_caches(original: Callable) -> Callable:
    """The threads that it starts must know how this side lays its KV cache out."""

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        with _contract_of(self):
            original(self, kv_caches)

    return register_kv_caches


@changes(f"{_MODULE}:KVCacheSendingThread.__init__", "8772fc7217712f7c", UPSTREAM_CONNECTORS)
def wrap_sending_thread_init(original: Callable) -> Callable:
    """The metadata that a decode side asks for says how pages are laid out."""

    def __init__(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        contract = _CONTRACT.get()
        if contract is not None:
            # All that is done with it is to encode it.
            values = msgspec.structs.asdict(self.metadata)
            self.metadata = {**values, _CONTRACT_FIELD: contract.to_dict()}

    return __init__


@changes(f"{_MODULE}:KVCacheRecvingThread.__init__", "03fa8d452aa4134e", UPSTREAM_CONNECTORS)
def wrap_receiving_thread_init(original: Callable) -> Callable:
    """It reads the block size that it is sent, and never compares it: with unequal sizes every
    byte arrives, in the wrong place."""

    def __init__(self, *args, **kwargs) -> None:
        original(self, *args, **kwargs)
        self.failed_blocks_lock = threading.Lock()
        self.failed_block_ids = set()
        contract = _CONTRACT.get()
        if contract is not None:
            holds_all_layers = self._prefill_pp_size == 1
            page_bytes = list(self.block_len_per_addr) if holds_all_layers else None
            self.decoder = ContractDecoder(self.decoder, contract, page_bytes)

    return __init__


def wrap_transfer(original: Callable) -> Callable:
    def transfer(self, req_meta: dict[str, Any]) -> None:
        """Pull a request's blocks; whatever goes wrong, they are reported as not loaded."""
        try:
            original(self, req_meta)
        except Exception:
            blocks = {block_id for group in req_meta["local_block_ids"] for block_id in group}
            with self.failed_blocks_lock:
                self.failed_block_ids |= blocks
            raise

    return transfer


def get_block_ids_with_load_errors(self) -> set[int]:
    """Return the blocks that could not be pulled since the last call; see vLLM's base class."""
    thread = self.connector_worker.kv_recv_thread
    if thread is None:
        return set()
    with thread.failed_blocks_lock:
        failed, thread.failed_block_ids = thread.failed_block_ids, set()
    return failed


_FAILED_PULL = (
    "A pull that fails is logged and then counted as done: the request would be decoded from what "
    "lay in its blocks before."
)


def _pull(name: str, upstream_sha256: str) -> Wrap:
    target = f"{_MODULE}:KVCacheRecvingThread.{name}"
    return changes(target, upstream_sha256, UPSTREAM_CONNECTORS, why=_FAILED_PULL)(wrap_transfer)


PATCHES: tuple[Patch, ...] = (
    Add(
        target=f"{_MODULE}:MooncakeConnector.{KNOWS_GRANULES}",
        replacement=True,
        why="It reads no hashes, and asks for whole blocks only where a request loads.",
        **UPSTREAM_CONNECTORS,
    ),
    Add(
        target=f"{_MODULE}:MooncakeConnector.get_block_ids_with_load_errors",
        replacement=get_block_ids_with_load_errors,
        why=_FAILED_PULL,
        **UPSTREAM_CONNECTORS,
    ),
    wrap_register_kv_caches,
    wrap_sending_thread_init,
    wrap_receiving_thread_init,
    _pull("_transfer_kv_cache_all_groups", "1b12f319a8e4e19d"),
    _pull("_transfer_kv_cache", "207375aff05d535f"),
)
