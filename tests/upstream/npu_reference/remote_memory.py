# SPDX-License-Identifier: Apache-2.0
"""Mooncake's transfer engine without RDMA: reads of another process' KV cache, with its tags.

As with RDMA, who is read takes no notice: a thread answers while its engine computes. All else of
the connector is vllm-ascend's: its metadata, sockets, messages and threads.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from threading import Thread
from typing import Any

from tests.upstream.npu_reference import transfers


class RemoteMemory:
    """Stands in for ``mooncake.engine.TransferEngine``.

    Args:
        folder: Where all engines have their sockets.

    Attributes:
        num_bytes: Read so far.
    """

    num_bytes = 0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listener = Listener(str(folder / str(self.get_rpc_port())))
        Thread(target=self._accept, daemon=True).start()

    def get_rpc_port(self) -> int:
        """Return what the other side names this one by: behind its host."""
        return os.getpid()

    def register_memory(self, address: int, num_bytes: int) -> int:
        """Any memory can be read."""
        return 0

    def batch_transfer_sync_read(
        self, session: str, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Copy stretches of the other side; return 0, or a negative number if it cannot be read."""
        _, _, port = session.rpartition(":")
        self.num_bytes += sum(lengths)
        try:
            with Client(str(self._folder / port)) as other:
                for to, address, length in zip(local, remote, lengths, strict=True):
                    other.send((address, length))
                    transfers.put(to, other.recv())
        except (OSError, EOFError):
            return -1
        return 0

    def _accept(self) -> None:
        while True:
            Thread(target=_answer, args=(self._listener.accept(),), daemon=True).start()


def _answer(other: Connection) -> None:
    """Answer the reads of one session, until the other side ends it."""
    with other:
        while True:
            try:
                address, length = other.recv()
            except EOFError:
                return
            other.send(transfers.take(address, length))


def num_bytes_pulled(engine: object) -> int:
    """Return the bytes that the process of an engine has read of others."""
    memory: RemoteMemory = _holder().transfer_engine
    return memory.num_bytes


def stand_in(folder: Path) -> None:
    """Let the engine of this process read and be read by those that have the folder."""
    folder.mkdir(exist_ok=True)
    _holder().transfer_engine = RemoteMemory(folder)


def _holder() -> Any:
    from vllm_ascend.distributed.kv_transfer.utils.mooncake_transfer_engine import (  # type: ignore[import-not-found]
        global_te,
    )

    return global_te
