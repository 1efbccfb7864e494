# SPDX-License-Identifier: Apache-2.0
"""The two backends, made for a scheduler and for a worker."""

from __future__ import annotations

from typing import Any, NamedTuple

from vllm_ascend.prefix_cache_config import block_hashes_are_seeded
from vllm_ascend.tier.disk.files import DiskError, DiskFiles
from vllm_ascend.tier.disk.level import DiskLevel
from vllm_ascend.tier.disk.threads import DiskThreads
from vllm_ascend.tier.host_index import HostIndex
from vllm_ascend.tier.host_memory import HostMemory, HostStore, MemoryAddress
from vllm_ascend.tier.layout import TierLayout
from vllm_ascend.tier.memory_over_disk import MemoryOverDisk
from vllm_ascend.tier.mooncake import MooncakeIndex, MooncakeKeys, MooncakeStore, connect
from vllm_ascend.tier.objects import HEADER_BYTES
from vllm_ascend.tier.settings import DiskSettings, TierSettings, check_staging

# Of the memory, one part in so many may wait for being written to the disk.
_WAITING_SHARE = 4


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
        ValueError: The memory is too small, or the disk cannot be used.
        MooncakeError: The store cannot be reached.
    """
    if settings.backend == "mooncake":
        client = connect(settings.mooncake, gives_memory=False)
        index = MooncakeIndex(client, MooncakeKeys(layout.digest, num_parts))
        return SchedulerBackend(index, None, None)
    host = _host_index(settings, layout, num_parts)
    memory, address = HostMemory.make(host.num_pages, host.page_bytes)
    if settings.disk is not None:
        assert isinstance(host, MemoryOverDisk), "there is a disk"
        host.disk = _disk_level(settings.disk, layout, host, memory)
    return SchedulerBackend(host, memory, address)


def _disk_level(
    settings: DiskSettings, layout: TierLayout, host: MemoryOverDisk, memory: HostMemory
) -> DiskLevel:
    if not block_hashes_are_seeded():
        raise ValueError(
            '--kv-transfer-config: "disk" needs PYTHONHASHSEED (PYTHONHASHSEED=0, as for all that '
            "share rows): without it names start at random, and the next engine finds nothing"
        )
    sizes = host.file_bytes
    # Files are whole pages of all parts, so those of other sizes are of another layout.
    name = "-".join(map(str, (layout.digest, host.page_bytes, *sizes.values())))
    try:
        files = DiskFiles(settings.path, name)
    except DiskError as error:
        raise ValueError(f'--kv-transfer-config: "disk": {error}') from error
    num_bytes = int(settings.gib * (1 << 30))
    return DiskLevel(DiskThreads(files, memory.buffers), num_bytes, sizes, most_waiting(host))


def most_waiting(host: MemoryOverDisk) -> int:
    """Return how many pages may wait for being written to the disk."""
    return max(host.num_pages // _WAITING_SHARE, 1)


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
    said = f"{settings.gib:g} GiB of host memory for {tokens:,} tokens without tails; {sizes}"
    if settings.disk is None:
        return said
    return (
        f"{said}; {settings.disk.gib:g} GiB on the disk at {settings.disk.path}, which holds "
        f"{index.disk.num_objects:,} objects of {index.disk.used_bytes / (1 << 30):.1f} GiB"
    )


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
    made = HostIndex if settings.disk is None else MemoryOverDisk
    return made(num_bytes, (layout.unit_bytes, layout.tail_bytes), num_parts)


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
