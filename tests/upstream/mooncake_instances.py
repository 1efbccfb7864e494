# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's hybrid Mooncake connector between two schedulers of one process.

Its threads, sockets and messages are its own. In place of RDMA, bytes are copied by address, and
what is copied is the oracle's shadow memory: so the oracle proves that the right rows have arrived.
"""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from tests.e2e.connectors.connected import ConnectedEngine
from tests.e2e.core.configurations import Configuration
from vllm_ascend.releases import running_release

MODULE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_hybrid_connector"


class CopyingEngine:
    """Stands in for RDMA.

    Attributes:
        pulls_left: So many pulls succeed, the next one breaks off half-way.
        meanwhile: Happens once, when half of a pull is done.
        num_bytes: Pulled so far.
    """

    num_bytes = 0
    pulls_left: int | None = None
    meanwhile: Callable[[], None] | None = None

    def get_rpc_port(self) -> int:
        """Return a port that nobody uses."""
        return 1

    def batch_transfer_sync_read(
        self, session: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Copy; return a negative number if the other side has gone."""
        count = len(lengths)
        self.num_bytes += sum(lengths)
        if self.pulls_left is not None:
            self.pulls_left -= 1
            if self.pulls_left < 0:
                count //= 2
        half = len(lengths) // 2
        for index, (to, start, length) in enumerate(zip(local, remote, lengths, strict=True)):
            if index == half and self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                meanwhile()
            if index < count:
                ctypes.memmove(to, start, length)
        return 0 if count == len(lengths) else -1


def stand_in_for_hosts(module: Any, transfer_engine: CopyingEngine) -> None:
    """Replace what the connector's module takes from a running NPU worker."""
    module.global_te = SimpleNamespace(
        get_transfer_engine=lambda *args, **kwargs: transfer_engine,
        register_buffer=lambda addresses, sizes: None,
    )
    module.get_ip = lambda: "127.0.0.1"
    module.init_ascend_config = module.get_ascend_config = MagicMock()
    module.get_tensor_model_parallel_rank = lambda: 0
    module.get_tensor_model_parallel_world_size = lambda: 1
    module.get_tp_group = MagicMock()
    module.get_pp_group = lambda: SimpleNamespace(rank_in_group=0)
    module.get_pcp_group = lambda: SimpleNamespace(rank_in_group=0, world_size=1)
    module.is_vl_model = lambda config: False
    module.get_transfer_timeout_value = lambda: 1
    module.time = SimpleNamespace(
        time=time.time,
        perf_counter=time.perf_counter,
        sleep=lambda seconds: time.sleep(min(seconds, 0.01)),
    )


class Instance(ConnectedEngine):
    """One side of the disaggregation."""

    def __init__(
        self, cell: Configuration, role: str, port: int, room: float = 4.0, policy: str = "fail"
    ) -> None:
        sizes = {"tp_size": 1, "dp_size": 1}
        transfer = KVTransferConfig(
            kv_connector="MooncakeConnector",
            kv_connector_module_path=MODULE,
            kv_role=role,
            kv_port=port,
            kv_load_failure_policy=policy,
            kv_connector_extra_config={"prefill": sizes, "decode": sizes},
        )
        super().__init__(
            cell.layout, cell.options(room), transfer, cell.oracle(0), compress_ratios=[4, 128]
        )

    def make_worker_connector(self) -> Any:
        """Return the worker's half, with the shadow memory registered."""
        from vllm_ascend.distributed.kv_transfer.kv_p2p import mooncake_hybrid_connector

        config = self.scheduler.kv_cache_config
        rows = self.worker.memory.rows
        caches = {
            layer: (torch.from_numpy(plane.view(np.int64)),)
            for group, plane in zip(config.kv_cache_groups, rows, strict=True)
            for layer in group.layer_names
        }
        pages = [
            (plane.nbytes // config.num_blocks, (group.layer_names[0],))
            for group, plane in zip(config.kv_cache_groups, rows, strict=True)
        ]
        tensors = running_release().tensors(pages, config.num_blocks)
        connector = mooncake_hybrid_connector.MooncakeConnector(
            self.vllm_config, KVConnectorRole.WORKER, replace(config, kv_cache_tensors=tensors)
        )
        connector.register_kv_caches(caches)
        return Watched(connector)


class Watched:
    """A worker's connector that tells the oracle which blocks it writes."""

    def __init__(self, connector: Any) -> None:
        self._connector = connector
        self._expected: dict[str, set[int]] = {}
        self.worker: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def start_load_kv(self, forward_context: Any) -> None:
        """Start pulling."""
        for request_id, meta in self._connector._connector_metadata.requests.items():
            for group_id, block_ids in enumerate(meta.local_block_ids):
                self.worker.expect(request_id, group_id, block_ids, runs_now=False)
                self._expected.setdefault(request_id, set()).update(block_ids)
        self._connector.start_load_kv(forward_context)

    def get_finished(self, finished: set[str]) -> tuple[set[str], set[str]]:
        """Return what was sent and what was received."""
        sent, received = self._connector.get_finished(finished)
        for request_id in received:
            self.worker.has_loaded(self._expected.pop(request_id, ()))
        return sent, received


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def prefill(producer: Instance, prompts: dict[str, list[int]]) -> dict[str, dict[str, Any]]:
    """Compute prompts; return by request what the other side needs."""
    for name, prompt in prompts.items():
        producer.add(name, list(prompt), 8).kv_transfer_params = {"do_remote_decode": True}
    while not all(name in producer.handed_over for name in prompts):
        producer.step()
    producer.step()  # finished requests are told to the worker
    return {name: producer.handed_over[name] for name in prompts}


def decode(
    consumer: Instance, prompts: dict[str, list[int]], params: dict[str, dict[str, Any]]
) -> dict[str, list[int]]:
    """Answer prompts that the other side has computed."""
    for name, prompt in prompts.items():
        consumer.add(name, list(prompt), 8).kv_transfer_params = dict(params[name])
    consumer.run()
    return {name: consumer.outputs[name] for name in prompts}
