# SPDX-License-Identifier: Apache-2.0
"""The header of an object: whose it is, how long it is, and what its bytes sum up to.

An object that is torn, foreign or was changed is never loaded: its header does not fit.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
from blake3 import blake3

Bytes = npt.NDArray[np.uint8]

_MAGIC = b"VATIER2\0"
_FIELDS = struct.Struct("<8s16s16sQ8sI")
HEADER_BYTES = 64
"""In front of the rows; so much that what follows is aligned."""
_CHECKSUM_BYTES = 8


class Levels(NamedTuple):
    """Where an object can be loaded from.

    Attributes:
        memory: Its bytes are in memory.
        disk: They are on the disk below.
        is_moving: They are on their way from one to the other.
    """

    memory: bool
    disk: bool
    is_moving: bool


class Gone(NamedTuple):
    """What has left a store.

    Attributes:
        keys: Objects that cannot be loaded any more.
        num_evicted: How many of them were given up for others.
        moved: Where there are two levels: objects that came to one or left it, and where they are.
    """

    keys: list[bytes]
    num_evicted: int
    moved: dict[bytes, Levels] | None = None


def checksum(payload: Bytes) -> bytes:
    """Return 8 bytes that change with the payload, whatever is changed in it: part of its BLAKE3.

    ``python -m benchmarks.tier_checksum`` says how fast it is.
    """
    return blake3(payload.data).digest(_CHECKSUM_BYTES)


def seal(target: Bytes, layout: bytes, key: bytes) -> None:
    """Write the header in front of an object's bytes.

    Args:
        target: Room for the header, and the bytes.
    """
    payload = target[HEADER_BYTES:]
    fields = (_MAGIC, layout, key, len(payload), checksum(payload))
    packed = _FIELDS.pack(*fields, crc32(_FIELDS.pack(*fields, 0)))
    target[: len(packed)] = np.frombuffer(packed, np.uint8)


def why_unusable(source: Bytes, layout: bytes, key: bytes) -> str | None:
    """Return why an object cannot be loaded, one of a few words; ``None``: it can.

    ============  =====================================================
    ``torn``      no header, or not a whole one
    ``foreign``   another layout, another object or another length
    ``changed``   the bytes are not those that were stored
    ============  =====================================================
    """
    packed = source[: _FIELDS.size].tobytes()
    magic, its_layout, its_key, num_bytes, stored, check = _FIELDS.unpack(packed)
    if magic != _MAGIC or check != crc32(packed[:-4] + bytes(4)):
        return "torn"
    if (its_layout, its_key, num_bytes) != (layout, key, len(source) - HEADER_BYTES):
        return "foreign"
    return None if checksum(source[HEADER_BYTES:]) == stored else "changed"
