# SPDX-License-Identifier: Apache-2.0
"""The two backends, made for a scheduler and for a worker."""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm_ascend.tier.host_index import HostIndex
from vllm_ascend.tier.host_memory import HostMemory, HostStore, MemoryAddress
from vllm_ascend.tier.layout import TierLayout
from vllm_ascend.tier.mooncake import MooncakeIndex, MooncakeKeys, MooncakeStore, connect
from vllm_ascend.tier.objects import HEADER_BYTES
from vllm_ascend.tier.settings import TierSettings, check_staging


class SchedulerBackend(NamedTuple):
    """What a scheduler has of a backend.

    Attributes:
        memory: Keeps the host backend's memory alive.
        address: Where workers find it; ``None``: they need not.
    """

    index: Any
    memory: HostMemory | None
    address: MemoryAddress | None


def for_scheduler(settings: TierSettings, layout: TierLayout, num_parts: int) -> SchedulerBackend:
    """Return a backend's scheduler half.

    Args:
        num_parts: Workers that store a part of every object.

    Raises:
        ValueError: The memory is too small.
        MooncakeError: The store cannot be reached.
    """
    if settings.backend == "mooncake":
        client = connect(settings.mooncake, gives_memory=False)
        index = MooncakeIndex(client, MooncakeKeys(layout.digest, num_parts))
        return SchedulerBackend(index, None, None)
    host = _host_index(settings, layout, num_parts)
    memory, address = HostMemory.make(host.num_pages, host.page_bytes)
    return SchedulerBackend(host, memory, address)


def in_words(settings: TierSettings, layout: TierLayout, index: Any, num_parts: int) -> str:
    """Return what a tier holds, for the start of an engine; ``index``: of :func:`for_scheduler`."""
    sizes = (
        f"{layout.unit} tokens have {layout.unit_bytes:,} bytes, the tail of a boundary "
        f"{layout.tail_bytes:,}"
    )
    if settings.backend == "mooncake":
        return f"Mooncake Store at {settings.mooncake.master_server_address}; {sizes}"
    units = index.num_pages // index.pages_of(layout.unit_bytes, num_parts)
    tokens = units * layout.unit
    return f"{settings.gib:g} GiB of host memory for {tokens:,} tokens without tails; {sizes}"


def check_sizes(settings: TierSettings, layout: TierLayout, num_parts: int = 1) -> None:
    """Check that memory and buffers hold objects of a layout.

    Raises:
        ValueError: They do not; says which setting is too small.
    """
    check_staging(settings.staging_mib, HEADER_BYTES + max(layout.unit_bytes, layout.tail_bytes))
    if settings.backend == "host":
        _host_index(settings, layout, num_parts)


def _host_index(settings: TierSettings, layout: TierLayout, num_parts: int) -> HostIndex:
    num_bytes = int(settings.gib * (1 << 30))
    return HostIndex(num_bytes, (layout.unit_bytes, layout.tail_bytes), num_parts)


def for_worker(settings: TierSettings, layout: TierLayout, part: int, num_parts: int) -> Any:
    """Return a backend's worker half.

    Args:
        part: Which part of every object this worker stores.

    Raises:
        MooncakeError: The store cannot be reached.
    """
    if settings.backend == "host":
        return HostStore(layout.digest)
    client = connect(settings.mooncake, gives_memory=True)
    return MooncakeStore(client, MooncakeKeys(layout.digest, num_parts), part)
