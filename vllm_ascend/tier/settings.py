# SPDX-License-Identifier: Apache-2.0
"""What ``kv_connector_extra_config`` says of the tier."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend.tier.mooncake_settings import MooncakeSettings, mooncake_settings

BACKENDS = ("host", "mooncake")
_OPTION = "--kv-transfer-config"
# vLLM's own keys, and those that other parts of the project read.
_OTHER_KEYS = frozenset({"least_gain_tokens"})


@dataclass(frozen=True)
class DiskSettings:
    """A disk below the tier's memory.

    Attributes:
        path: A folder, in which the tier makes one of its own.
        gib: What all files there may take, of all engines that share it, in GiB.
    """

    path: str
    gib: float


@dataclass(frozen=True)
class TierSettings:
    """How an engine's tier is set up.

    Attributes:
        backend: ``host`` or ``mooncake``.
        gib: Host memory of the engine's tier (``host``), in GiB.
        staging_mib: Size of each of four buffers between device and store, in MiB.
        async_above_mib: A request waits for a larger load while others run, in MiB.
        load_seconds: A load that takes longer is given up, and its request computed.
        pool: Engines share what is stored under one name; the model's by default.
        mooncake: Of backend ``mooncake``.
        disk: Below the memory of backend ``host``; ``None``: there is none.
    """

    backend: str
    gib: float = 0.0
    staging_mib: float = 256.0
    async_above_mib: float = 64.0
    load_seconds: float = 10.0
    pool: str = ""
    mooncake: MooncakeSettings = field(default_factory=MooncakeSettings)
    disk: DiskSettings | None = None


def _positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf


def _not_negative(value: Any) -> bool:
    return value == 0 or _positive(value)


_NUMBERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "gib": (_positive, "numbers of GiB above 0"),
    "staging_mib": (_positive, "numbers of MiB above 0"),
    "async_above_mib": (_not_negative, "numbers of MiB from 0 on"),
    "load_seconds": (_positive, "numbers of seconds above 0"),
}


def read_settings(extra: Mapping[str, Any]) -> TierSettings:
    """Return what is set.

    Raises:
        ValueError: A key is unknown or missing, or a value is not allowed; names both.
    """
    known = {"backend", "pool", "mooncake", "disk", *_NUMBERS}
    if unknown := sorted(set(extra) - known - _OTHER_KEYS):
        raise _invalid(unknown[0], extra[unknown[0]], f"keys are {', '.join(sorted(known))}")
    backend = extra.get("backend")
    if backend not in BACKENDS:
        raise _invalid("backend", backend, "are host and mooncake")
    numbers = {key: extra[key] for key in _NUMBERS if key in extra}
    for key, value in numbers.items():
        is_allowed, allowed = _NUMBERS[key]
        if not is_allowed(value):
            raise _invalid(key, value, f"are {allowed}")
    if (backend == "host") != ("gib" in extra):
        rule = "is needed by backend host" if backend == "host" else "is only for backend host"
        raise ValueError(f'{_OPTION}: "gib" {rule}: the host memory of this engine\'s tier, in GiB')
    pool = extra.get("pool", "")
    if not isinstance(pool, str):
        raise _invalid("pool", pool, "are names")
    told = extra.get("mooncake", {})
    if backend == "host" and told:
        raise ValueError(f'{_OPTION}: "mooncake" is only for backend mooncake')
    if not isinstance(told, Mapping):
        raise _invalid("mooncake", told, "are JSON objects")
    if backend != "host" and "disk" in extra:
        raise ValueError(f'{_OPTION}: "disk" is only for backend host')
    settings = mooncake_settings(told) if backend == "mooncake" else MooncakeSettings()
    disk = _disk(extra["disk"]) if "disk" in extra else None
    return TierSettings(backend=backend, pool=pool, mooncake=settings, disk=disk, **numbers)


def _disk(told: Any) -> DiskSettings:
    if not isinstance(told, Mapping) or set(told) != {"path", "gib"}:
        raise _invalid("disk", told, 'are JSON objects with "path" and "gib"')
    path, gib = told["path"], told["gib"]
    if not isinstance(path, str) or not path.startswith("/"):
        raise _invalid("disk path", path, "are absolute paths of folders")
    if not _positive(gib):
        raise _invalid("disk gib", gib, "are numbers of GiB above 0")
    return DiskSettings(path, gib)


def check_nodes(settings: TierSettings, num_nodes: int) -> None:
    """Check that workers reach the memory.

    Args:
        num_nodes: Over which the workers of one engine are spread.

    Raises:
        ValueError: They do not.
    """
    if settings.backend == "host" and num_nodes > 1:
        raise ValueError(
            f'{_OPTION}: "backend": "host" is the memory of one node, and the workers of an engine '
            f"are spread over {num_nodes}: use mooncake"
        )


def check_staging(staging_mib: float, object_bytes: int) -> None:
    """Check that a buffer holds one object, its header included.

    Raises:
        ValueError: It does not.
    """
    if object_bytes > staging_mib * (1 << 20):
        raise ValueError(
            f'{_OPTION}: "staging_mib": {staging_mib:g} is too small: an object has '
            f"{object_bytes:,} bytes"
        )


def _invalid(key: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f'{_OPTION}: "{key}": {json.dumps(value)} is invalid: allowed {allowed}')
