# SPDX-License-Identifier: Apache-2.0
"""What AscendStore expects of every store's client, for stores that need none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self


class StoreClient:
    """Stands in for a store's client in AscendStore's table of backends: what it is told of a host.

    Args:
        parallel_config: vLLM's.
        options: Of later releases.
    """

    def __init__(self, parallel_config: Any, **options: Any) -> None:
        pass

    @classmethod
    def create_scheduler_client(cls, parallel_config: Any) -> Self:
        """Return the scheduler's own client, which later releases have."""
        return cls(parallel_config)

    def register_buffer(self, addresses: Sequence[int], lengths: Sequence[int]) -> None:
        """Any memory can be read."""

    def set_device(self) -> None:
        """There is none to choose."""
