# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's hybrid Mooncake connector: layouts are compared, failed and late pulls are told,
and the prompt's blocks alone are handed over.

Its prefill side sends its metadata when a decode side asks for the first time; the description of
the KV cache travels along. Both threads of the connector go on as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import zmq
from vllm.utils.math_utils import cdiv

from vllm_ascend.core.connectors.connector_rules import (
    BRINGS_TAILS,
    KNOWS_GRANULES,
    KNOWS_ROWS,
    TAKES_TAILS_ALONE,
)
from vllm_ascend.core.layout.specs import group_specs, tokens_per_block
from vllm_ascend.kv_transfer import layout_contract
from vllm_ascend.kv_transfer.held_blocks import AnsweringSocket, pulled_while_held
from vllm_ascend.kv_transfer.layout_contract import (
    CONTRACT_FIELD,
    ContractDecoder,
    KVTransferContract,
)
from vllm_ascend.patch.features import UPSTREAM_CONNECTORS
from vllm_ascend.patch.table import Add, Patch, Wrap, changes

_MODULE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector"

# Of the worker whose threads are being started.
_CONTRACT: ContextVar[KVTransferContract | None] = ContextVar("contract", default=None)


def _change(name: str) -> Callable[[Callable], Wrap]:
    return changes(f"{_MODULE}:{name}", UPSTREAM_CONNECTORS)


@_change("MooncakeConnectorWorker.register_kv_caches")
def wrap_register_kv_caches(self, kv_caches: dict[str, Any], *, original: Callable) -> None:
    """Both sides must know how pages are laid out."""
    contract = None
    if self.use_hybrid:
        contract = layout_contract.describe(self.kv_cache_config, self.vllm_config)
    token = _CONTRACT.set(contract)
    try:
        original(self, kv_caches)
    finally:
        _CONTRACT.reset(token)


@_change("KVCacheSendingThread.__init__")
def wrap_sending_thread_init(self, *args, original: Callable, **kwargs) -> None:
    """Both sides must know how pages are laid out."""
    original(self, *args, **kwargs)
    contract = _CONTRACT.get()
    if contract is not None:
        # All that is done with it is to encode it.
        values = msgspec.structs.asdict(self.metadata)
        self.metadata = {**values, CONTRACT_FIELD: contract.to_dict()}


@_change("KVCacheSendingThread.run_busy_loop")
def wrap_run_busy_loop(self, sock, *, original: Callable) -> None:
    """It gives blocks away after a time limit; the decode side must learn of it.

    Answer decode sides; those that ask whether a request's blocks are still held, too.
    """
    tracker = self.task_tracker

    def holds(request_id: str) -> bool:
        with tracker.done_task_lock:
            return request_id in tracker.reqs_to_process

    original(self, AnsweringSocket(sock, holds))


@_change("KVCacheRecvingThread.__init__")
def wrap_receiving_thread_init(self, *args, original: Callable, **kwargs) -> None:
    """It compares no block sizes: unequal ones misplace bytes."""
    original(self, *args, **kwargs)
    self.failed_blocks_lock = threading.Lock()
    self.failed_block_ids = set()
    self.add_request = partial(_note_and_add, self, self.add_request)
    contract = _CONTRACT.get()
    if contract is not None:
        holds_all_layers = self._prefill_pp_size == 1
        page_bytes = list(self.block_len_per_addr) if holds_all_layers else None
        self.decoder = ContractDecoder(self.decoder, contract, page_bytes)


@_change("KVCacheRecvingThread._get_remote_socket")
def wrap_get_remote_socket(
    self, remote_host: str, remote_handshake_port: int, *, original: Callable
) -> Any:
    """Pulls from a dead prefill side wait for ever.

    Return a socket that waits for an answer for a limited time, and is closed at once.
    """
    socket = original(self, remote_host, remote_handshake_port)
    socket.setsockopt(zmq.RCVTIMEO, int(self.timeout * 1000))
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def _note_and_add(thread: Any, add_request: Callable, *, request_id: str, **request: Any) -> None:
    """Note a request as one to wait for before its pull can be done.

    The worker does so behind it: a pull that is done by then is forgotten, and waited for for ever.
    """
    thread.task_tracker.add_req_to_process(request_id)
    add_request(request_id=request_id, **request)


@_change("KVCacheRecvingThread._transfer_kv_cache")
def wrap_transfer(self, req_meta: dict[str, Any], *, original: Callable) -> None:
    """It counts failed pulls as done, and late pulls read foreign rows.

    Pull a request's blocks; whatever goes wrong, they are reported as not loaded.
    """
    blocks = {block_id for group in req_meta["local_block_ids"] for block_id in group}
    try:
        with _while_held(req_meta) if blocks else nullcontext():
            original(self, req_meta)
    except Exception:
        with self.failed_blocks_lock:
            self.failed_block_ids |= blocks
        raise


def _while_held(req_meta: dict[str, Any]) -> AbstractContextManager[None]:
    return pulled_while_held(
        req_meta["remote_host"], req_meta["remote_handshake_port"], req_meta["remote_request_id"]
    )


@_change("MooncakeConnectorScheduler.request_finished_all_groups")
def wrap_request_finished(
    self, request, block_ids, *, original: Callable
) -> tuple[bool, dict[str, Any] | None]:
    """With drafts it counts windows' blocks from the end of too long a table: wrong answers.

    Hand over blocks of the prompt alone.
    """
    if self.use_hybrid:
        specs = group_specs(self.kv_cache_config)
        block_ids = tuple(
            table[: cdiv(request.num_prompt_tokens, tokens_per_block(spec))]
            for spec, table in zip(specs, block_ids, strict=True)
        )
    return original(self, request, block_ids)


def get_block_ids_with_load_errors(self) -> set[int]:
    """Return the blocks that could not be pulled since the last call; see vLLM's base class."""
    thread = self.connector_worker.kv_recv_thread
    if thread is None:
        return set()
    with thread.failed_blocks_lock:
        failed, thread.failed_block_ids = thread.failed_block_ids, set()
    return failed


_ADDED = {
    KNOWS_GRANULES: (True, "Takes hashes of any size; only loads need whole blocks."),
    KNOWS_ROWS: (True, "Counts the tokens of compressed blocks by their ratio."),
    TAKES_TAILS_ALONE: (True, "Hands over only windows' last blocks."),
    BRINGS_TAILS: (True, "Pulls every block that has no name."),
    "get_block_ids_with_load_errors": (get_block_ids_with_load_errors, wrap_transfer.why),
}

PATCHES: tuple[Patch, ...] = (
    *(
        Add(
            target=f"{_MODULE}:MooncakeConnector.{name}",
            replacement=value,
            why=why,
            **UPSTREAM_CONNECTORS,
        )
        for name, (value, why) in _ADDED.items()
    ),
    wrap_register_kv_caches,
    wrap_sending_thread_init,
    wrap_run_busy_loop,
    wrap_receiving_thread_init,
    wrap_get_remote_socket,
    replace(wrap_transfer, target=f"{wrap_transfer.target}_all_groups"),
    wrap_transfer,
    wrap_request_finished,
)
