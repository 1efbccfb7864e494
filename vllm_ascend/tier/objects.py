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

Bytes = npt.NDArray[np.uint8]

_MAGIC = b"VATIER1\0"
_FIELDS = struct.Struct("<8s16s16sQII")
HEADER_BYTES = 64
"""In front of the rows; so much that what follows is aligned."""

_COLUMNS = 1024  # 64-bit words that are summed up side by side


class Header(NamedTuple):
    """What an object says of itself.

    Attributes:
        layout: 16 bytes that name the layout of its bytes.
        key: The first 16 bytes of the digest of its key.
        num_bytes: Bytes behind the header.
        checksum: Of these bytes.
    """

    layout: bytes
    key: bytes
    num_bytes: int
    checksum: int


class Gone(NamedTuple):
    """What has left a store.

    Attributes:
        keys: Objects that cannot be loaded any more.
        num_evicted: How many of them were given up for others.
    """

    keys: list[bytes]
    num_evicted: int


def checksum(payload: Bytes) -> int:
    """Return 32 bits that change with any flipped bit, at several GB/s.

    Words at equal places of blocks of 8 KiB are added up without loss of a single flip; the CRC of
    the sums tells places apart.
    """
    num_words = len(payload) // 8
    words = payload[: num_words * 8].view(np.uint64)
    num_rows = num_words // _COLUMNS
    sums = words[: num_rows * _COLUMNS].reshape(num_rows, _COLUMNS).sum(axis=0, dtype=np.uint64)
    rest = payload[num_rows * _COLUMNS * 8 :]
    return crc32(rest.data, crc32(sums.data))


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
