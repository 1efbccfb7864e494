# SPDX-License-Identifier: Apache-2.0
"""NVIDIA Dynamo's index of cached prefixes, fed over ZMQ as in a deployment of it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from itertools import count

from vllm.distributed.kv_events import BlockStored, KVEventBatch, ZmqEventPublisher

from tests.ut.kv_events.ports import free_ports

os.environ.setdefault("DYN_LOG", "error")  # it is read when the library is loaded
from dynamo.llm import SelectionService

_PATIENCE_SECONDS = 300.0
_FIRST_MARK = 1_000_000  # no token of any prompt


class DynamoRouter:
    """Dynamo's selection service: its subscriber, its reader of vLLM's events, its radix tree.

    Attributes:
        publisher: What it listens to.
        block_size: Tokens per block, as it is told.
    """

    def __init__(self, block_size: int) -> None:
        (port,) = free_ports(1)
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.publisher = ZmqEventPublisher(0, f"tcp://*:{port}", topic="kv@engine@model")
        self.block_size = block_size
        self._loop = asyncio.new_event_loop()
        self._marks = count(_FIRST_MARK)
        self._service = SelectionService(indexer_threads=1)
        worker = {
            "worker_id": 1,
            "endpoint": "http://127.0.0.1:8000",
            "kv_events_endpoint": self.endpoint,
            "block_size": block_size,
            "data_parallel_size": 1,
        }
        self._run(self._service.upsert_worker, worker)
        self._wait_until_read(is_connecting=True)

    def close(self) -> None:
        """Stop listening."""
        self._service.shutdown()
        self.publisher.shutdown()
        self._loop.close()

    def publish(self, events: list) -> None:
        """Publish events; return when they have been read."""
        self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
        self._wait_until_read()

    def longest_prefix(self, token_ids: list[int], lora_name: str | None = None) -> int:
        """Return how many tokens of a prompt it takes for cached, in blocks."""
        question = {"token_ids": token_ids, "lora_name": lora_name}
        (worker,) = self._run(self._service.overlap_scores, question)["workers"]
        return worker["device_blocks"] * self.block_size

    def _wait_until_read(self, *, is_connecting: bool = False) -> None:
        """Publish a block of its own behind what was published, and ask until it is there."""
        mark = self._publish_mark()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self.longest_prefix([mark] * self.block_size):
            assert time.monotonic() < deadline, "Dynamo does not follow the events"
            time.sleep(0.0005)
            if is_connecting:
                mark = self._publish_mark()

    def _publish_mark(self) -> int:
        mark, size = next(self._marks), self.block_size
        event = BlockStored([mark], None, [mark] * size, size, None, "GPU", None, [None], 0)
        self.publisher.publish(KVEventBatch(ts=time.time(), events=[event]))
        return mark

    def _run(self, function: Callable[[dict], Awaitable[dict]], argument: dict) -> dict:
        async def call() -> dict:
            return await function(argument)

        return self._loop.run_until_complete(call())
