# SPDX-License-Identifier: Apache-2.0
"""Whether a tier would come up: its settings, the memory asked for, the store's master."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vllm_ascend.prefix_cache_config import block_hashes_are_seeded

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from vllm_ascend.tier.settings import DiskSettings, TierSettings

_GIB = 1 << 30
_MASTER_SECONDS = 2.0


def check_tier(
    config: KVTransferConfig, kv_cache_config: KVCacheConfig, vllm_config: VllmConfig
) -> Iterator[str]:
    """Yield what stands against a tier on this machine; nothing without a tier.

    Raises:
        ValueError: An engine would not start with these settings; the message is its own.
    """
    from vllm_ascend.core.connectors.connector_rules import connectors
    from vllm_ascend.tier.backends import check_sizes
    from vllm_ascend.tier.layout import describe
    from vllm_ascend.tier.registration import CONNECTOR
    from vllm_ascend.tier.settings import check_nodes, read_settings

    for connector, told in connectors(config):
        if connector.__name__ == CONNECTOR:
            settings = read_settings(told.kv_connector_extra_config)
            check_nodes(settings, vllm_config.parallel_config.nnodes_within_dp)
            check_sizes(settings, describe(kv_cache_config, vllm_config, settings.pool))
            yield from _what_is_missing(settings)


def _what_is_missing(settings: TierSettings) -> Iterator[str]:
    from vllm_ascend.tier import mooncake

    if settings.backend == "host":
        available = _available_bytes()
        if available is not None and settings.gib * _GIB > available:
            yield (
                f'the tier\'s "gib": {settings.gib:g} is more than the {available / _GIB:.0f} GiB '
                "of memory that are available here"
            )
        if settings.disk is not None:
            yield from _what_the_disk_lacks(settings.disk)
        return
    try:
        mooncake.store_class()
    except mooncake.MooncakeError as error:
        yield str(error)
    address = settings.mooncake.master_server_address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _MASTER_SECONDS).close()
    except (OSError, OverflowError) as error:
        yield (
            f"the tier's Mooncake master does not answer at {address} ({error}): an engine does "
            "not start before mooncake_master runs there"
        )


def _what_the_disk_lacks(disk: DiskSettings) -> Iterator[str]:
    if not block_hashes_are_seeded():
        yield (
            'the tier\'s "disk" needs PYTHONHASHSEED: without it an engine does not start, for the '
            "next one would find nothing"
        )
    if not os.path.isdir(disk.path):
        yield f'the tier\'s "disk": {disk.path} is no folder here'
        return
    if not os.access(disk.path, os.W_OK | os.X_OK):
        yield f'the tier\'s "disk": this user cannot write to {disk.path}'
    total = shutil.disk_usage(disk.path).total
    if disk.gib * _GIB > total:
        yield (
            f'the tier\'s "disk": {disk.gib:g} GiB are more than the {total / _GIB:.0f} GiB of the '
            f"file system at {disk.path}"
        )


def _available_bytes() -> int | None:
    """Return the memory that is available on this machine; ``None``: unknown."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
