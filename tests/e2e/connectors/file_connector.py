# SPDX-License-Identifier: Apache-2.0
"""A prefill/decode connector through files: a folder per request, in it a file per KV cache group.

It behaves as vllm-ascend's hybrid Mooncake connector does: the prefill side drops the prompt's last
token and holds its blocks until they are handed over, the decode side loads asynchronously all
blocks that it has no hash for, and nobody moves the null block.
"""

from __future__ import annotations

import io
import json
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
from vllm.v1.request import RequestStatus

from tests.e2e.connectors.worker_hooks import EmptyWorkerHooks
from vllm_ascend.kv_transfer import layout_contract
from vllm_ascend.kv_transfer.layout_contract import KVTransferContract

logger = logging.getLogger("tests.file_connector")

Placed = list[list[tuple[int, int]]]
"""Per group, (ordinal in the request's table, block id)."""


@dataclass
class Transfers(KVConnectorMetadata):
    """What a step's workers must move: name of the hand-over -> blocks."""

    save: dict[str, tuple[str, Placed]] = field(default_factory=dict)
    load: dict[str, tuple[str, Placed]] = field(default_factory=dict)


class FileConnector(EmptyWorkerHooks, KVConnectorBase_V1, SupportsHMA):
    """Both roles; ``extra_config``: ``folder``, ``timeout_s``, ``pause_s`` (within every file)."""

    knows_granules = True
    knows_rows = True

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.folder = Path(extra["folder"])
        self.timeout_s = extra.get("timeout_s", 5.0)
        self.pause_s = extra.get("pause_s", 0.0)
        self.contract = layout_contract.describe(kv_cache_config, vllm_config)
        self.layers = [group.layer_names for group in kv_cache_config.kv_cache_groups]
        self.pending = Transfers()
        self.loads: dict[str, tuple[Future[None], Placed]] = {}
        self.saved: set[str] = set()
        self.failed_block_ids: set[int] = set()
        self.executor = ThreadPoolExecutor(4)

    # Scheduler

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params = request.kv_transfer_params or {}
        if params.get("do_remote_prefill"):
            count = request.num_prompt_tokens - 1 - num_computed_tokens
            return (count, True) if count > 0 else (0, False)
        if params.get("do_remote_decode") and not params.get("_p_side_truncated"):
            request.prompt_token_ids.pop()
            request._all_token_ids.pop()
            request.num_prompt_tokens -= 1
            request.max_tokens = 1
            params["_p_side_truncated"] = True
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params or {}
        if num_external_tokens:
            self.pending.load[request.request_id] = (
                params["name"],
                [
                    [(i, b.block_id) for i, b in enumerate(g) if not b.is_null and not b.block_hash]
                    for g in blocks.blocks
                ],
            )
        params["do_remote_prefill"] = False  # once: what could not be loaded is computed

    def request_finished_all_groups(self, request, block_ids):
        params = request.kv_transfer_params or {}
        is_done = request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        if not (params.get("do_remote_decode") and is_done):
            return False, None
        placed = [[(i, b) for i, b in enumerate(group) if b] for group in block_ids]
        self.pending.save[request.request_id] = params["name"], placed
        return True, {"do_remote_prefill": True, "name": params["name"]}

    def build_connector_meta(self, scheduler_output):
        transfers, self.pending = self.pending, Transfers()
        return transfers

    # Worker

    def register_kv_caches(self, kv_caches):
        self.kv_caches = kv_caches

    def start_load_kv(self, forward_context, **kwargs):
        transfers = self._get_connector_metadata()
        for request_id, (name, placed) in transfers.save.items():
            self._save(self.folder / name, placed)
            self.saved.add(request_id)
        for request_id, (name, placed) in transfers.load.items():
            future = self.executor.submit(self._load, self.folder / name, placed)
            self.loads[request_id] = future, placed

    def _save(self, folder: Path, placed: Placed) -> None:
        folder.mkdir(parents=True)
        (folder / "contract.json").write_text(json.dumps(self.contract.to_dict()))
        for group_id, blocks in enumerate(placed):
            ids = [block_id for _, block_id in blocks]
            pages = {layer: self.kv_caches[layer][ids].clone() for layer in self.layers[group_id]}
            buffer = io.BytesIO()
            torch.save(([ordinal for ordinal, _ in blocks], pages), buffer)
            half = buffer.tell() // 2
            with (folder / f"{group_id}.pt").open("wb") as file:
                file.write(buffer.getvalue()[:half])
                file.flush()
                time.sleep(self.pause_s)
                file.write(buffer.getvalue()[half:])
        (folder / "complete").touch()

    def _load(self, folder: Path, placed: Placed) -> None:
        deadline = time.monotonic() + self.timeout_s
        while not (folder / "complete").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{folder.name} was not handed over in {self.timeout_s} s")
            time.sleep(0.01)
        remote = KVTransferContract.from_dict(json.loads((folder / "contract.json").read_text()))
        layout_contract.check(self.contract, remote, remote_name=f"{folder.name}'s producer")
        for group_id, blocks in enumerate(placed):
            ordinals, pages = torch.load(folder / f"{group_id}.pt")
            # Where the producer has the null block after a hit, nobody reads.
            known = [(ordinals.index(i), block_id) for i, block_id in blocks if i in ordinals]
            rows, ids = [row for row, _ in known], [block_id for _, block_id in known]
            for layer in self.layers[group_id]:
                self.kv_caches[layer][ids] = pages[layer][rows]

    def get_finished(self, finished_req_ids):
        done = {request_id for request_id, (future, _) in self.loads.items() if future.done()}
        for request_id in done:
            future, placed = self.loads.pop(request_id)
            if (error := future.exception()) is not None:
                logger.error("request %s: %s", request_id, error)
                self.failed_block_ids.update(block_id for group in placed for _, block_id in group)
        saved, self.saved = self.saved, set()
        return saved, done

    def get_block_ids_with_load_errors(self):
        failed, self.failed_block_ids = self.failed_block_ids, set()
        return failed

    def shutdown(self):
        self.executor.shutdown(wait=False, cancel_futures=True)
