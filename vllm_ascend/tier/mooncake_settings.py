# SPDX-License-Identifier: Apache-2.0
"""How a Mooncake Store is reached: our own keys, Mooncake's JSON file, its environment variables.

A key of ours wins over the file that ``MOONCAKE_CONFIG_PATH`` names, and that over the other
variables. Names are Mooncake's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from vllm_ascend.prefix_cache_config import process_environment

_CONFIG = "MOONCAKE_CONFIG_PATH"
_VARIABLES = {
    "master_server_address": "MOONCAKE_MASTER",
    "metadata_server": "MOONCAKE_TE_META_DATA_SERVER",
    "protocol": "MOONCAKE_PROTOCOL",
    "device_name": "MOONCAKE_DEVICE",
    "global_segment_size": "MOONCAKE_GLOBAL_SEGMENT_SIZE",
    "local_buffer_size": "MOONCAKE_LOCAL_BUFFER_SIZE",
    "local_hostname": "LOCAL_HOSTNAME",
}
_PROTOCOLS = ("tcp", "rdma", "ascend")
_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b?)", re.IGNORECASE)


@dataclass(frozen=True)
class MooncakeSettings:
    """How a Mooncake Store is reached.

    Attributes:
        master_server_address: Host and port of ``mooncake_master``.
        metadata_server: Address of the metadata server, or ``P2PHANDSHAKE`` for none.
        protocol: ``tcp``, ``rdma`` or ``ascend``.
        device_name: Network device; empty: Mooncake chooses.
        global_segment_size: Memory that each worker gives to the store, in bytes.
        local_buffer_size: Mooncake's own transfer buffer of each process, in bytes.
        local_hostname: The name under which others reach this host.
    """

    master_server_address: str = ""
    metadata_server: str = "P2PHANDSHAKE"
    protocol: str = "tcp"
    device_name: str = ""
    global_segment_size: int = 4 << 30
    local_buffer_size: int = 64 << 20
    local_hostname: str = "127.0.0.1"


def mooncake_settings(told: Mapping[str, Any]) -> MooncakeSettings:
    """Return the settings in force.

    Args:
        told: The key ``mooncake`` of ``kv_connector_extra_config``.

    Raises:
        ValueError: The file cannot be read, a key is unknown or a value is not allowed.
    """
    environment = process_environment()
    values: dict[str, Any] = {
        name: environment[variable]
        for name, variable in _VARIABLES.items()
        if environment.get(variable)
    }
    if path := environment.get(_CONFIG):
        values |= {k: v for k, v in _read_file(path).items() if k in _VARIABLES}
    known = [field.name for field in fields(MooncakeSettings)]
    if unknown := sorted(set(told) - set(known)):
        raise ValueError(
            f'--kv-transfer-config: "mooncake": key "{unknown[0]}" is unknown: allowed are '
            f"{', '.join(known)}"
        )
    values |= told
    for name in ("global_segment_size", "local_buffer_size"):
        if name in values:
            values[name] = _bytes(name, values[name])
    settings = MooncakeSettings(**values)
    _check(settings)
    return settings


def _check(settings: MooncakeSettings) -> None:
    if not re.fullmatch(r"\S+:\d+", str(settings.master_server_address)):
        raise ValueError(
            f'--kv-transfer-config: "mooncake": "master_server_address": '
            f"{json.dumps(settings.master_server_address)} is invalid: allowed are HOST:PORT (also "
            f"from {_CONFIG} or MOONCAKE_MASTER)"
        )
    if settings.protocol not in _PROTOCOLS:
        raise ValueError(
            f'--kv-transfer-config: "mooncake": "protocol": {json.dumps(settings.protocol)} is '
            f"invalid: allowed are {', '.join(_PROTOCOLS)}"
        )


def _read_file(path: str) -> Mapping[str, Any]:
    try:
        values = json.loads(Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{_CONFIG}={path!r} is no readable JSON file: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{_CONFIG}={path!r} holds no JSON object")
    return values


def _bytes(name: str, value: Any) -> int:
    match = _SIZE.fullmatch(str(value).strip())
    if isinstance(value, bool) or match is None:
        raise ValueError(
            f'--kv-transfer-config: "mooncake": "{name}": {json.dumps(value)} is invalid: allowed '
            "are bytes, or numbers with KB, MB, GB or TB"
        )
    unit = match[2].lower()
    unit = unit if unit.endswith("b") or not unit else f"{unit}b"
    return int(float(match[1]) * _UNITS[unit])
