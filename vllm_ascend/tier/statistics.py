# SPDX-License-Identifier: Apache-2.0
"""What the tier counts, on its way from the scheduler to Prometheus and to vLLM's log line."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from vllm_ascend.tier.layout import TAIL

NOT_STORED = ("full", "buffers", "store", "failed_step", "load_failed")
"""Why an object was not stored: no room in the tier, no free buffer, the store refused it, its step
failed, or it rests on a load that failed."""
UNUSABLE = ("gone", "torn", "foreign", "changed", "late", "error")
"""Why an object could not be loaded; the last two count whole loads: too late, the store failed."""


@dataclass
class TierCounts:
    """Counts since they were last taken.

    Attributes:
        loads: Loads ordered.
        failed_loads: Loads that failed; their requests were computed.
        hit_tokens: Tokens that loads bring.
        loaded_bytes: Bytes of these loads, over all workers' parts.
        stored_bytes: Bytes stored.
        stored_units: Objects with rows that were stored.
        stored_tails: Tails that were stored.
        evicted: Objects given up for others.
        not_stored: Why, of :data:`NOT_STORED` -> so many objects were not stored.
        pauses: How often the tier was left alone for a while.
        disk_written_bytes: Bytes written to a disk below.
        disk_read_bytes: Bytes that came up from it.
        disk_evicted: Objects on it given up for others.
        disk_not_written: Objects that it did not take: it is slow, full or fails.
        disk_not_read: Objects that it could not give.
        disk_pauses: How often it was left alone for a while.
        look_up_seconds: Of every look-up.
        load_seconds: Of every load that has ended.
        unusable: Why, of :data:`UNUSABLE` -> so many could not be loaded.
    """

    loads: int = 0
    failed_loads: int = 0
    hit_tokens: int = 0
    loaded_bytes: int = 0
    stored_bytes: int = 0
    stored_units: int = 0
    stored_tails: int = 0
    evicted: int = 0
    not_stored: Counter[str] = field(default_factory=Counter)
    pauses: int = 0
    disk_written_bytes: int = 0
    disk_read_bytes: int = 0
    disk_evicted: int = 0
    disk_not_written: int = 0
    disk_not_read: int = 0
    disk_pauses: int = 0
    look_up_seconds: list[float] = field(default_factory=list)
    load_seconds: list[float] = field(default_factory=list)
    unusable: Counter[str] = field(default_factory=Counter)

    def stored(self, kind: bytes, num_bytes: int) -> None:
        """An object was stored."""
        self.stored_bytes += num_bytes
        if kind == TAIL:
            self.stored_tails += 1
        else:
            self.stored_units += 1

    def clear(self) -> None:
        """Count from zero again."""
        self.__init__()  # type: ignore[misc]

    def as_data(self) -> dict[str, Any]:
        """Return plain values of everything that is not zero."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in values.items()
            if value
        }


@dataclass
class TierStats(KVConnectorStats):
    """The same as vLLM carries it: see :meth:`TierCounts.as_data`."""

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        """Whether nothing was counted."""
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add what another process or step has counted."""
        for name, value in other.data.items():
            known = self.data.get(name)
            if known is None:
                self.data[name] = value
            elif isinstance(value, dict):
                self.data[name] = dict(Counter(known) + Counter(value))
            else:
                self.data[name] = known + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what vLLM's log line says."""
        data = self.data
        seconds = data.get("load_seconds", [])
        return {
            "tier hit tokens": data.get("hit_tokens", 0),
            "tier loads": data.get("loads", 0),
            "tier failed loads": data.get("failed_loads", 0),
            "tier MB loaded": round(data.get("loaded_bytes", 0) / 1e6, 1),
            "tier MB stored": round(data.get("stored_bytes", 0) / 1e6, 1),
            "tier ms per load": round(1e3 * sum(seconds) / len(seconds), 1) if seconds else 0,
        }
