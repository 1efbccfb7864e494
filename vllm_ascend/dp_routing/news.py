# SPDX-License-Identifier: Apache-2.0
"""What a rank tells of its cache, as it travels: the changes of a step, in eight bytes a name."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

import msgspec

from vllm_ascend.kv_events.layout import EngineRules, GroupRule

Change = tuple[int, bytes, bytes]
"""A group's index in the events, the names that are cached now, those that no longer are."""
TIER_ROWS, TIER_TAILS = -1, -2
"""In the place of a group: the rows of a tier's units, and its tails."""


class TierRules(msgspec.Struct, array_like=True, frozen=True):
    """How the names of a tier below the KV cache are to be read.

    Attributes:
        unit_tokens: A unit of rows; hits end at its multiples.
        rows_ahead: Rows that end at ``e`` are called by the granule that ends so many tokens later.
        tails_ahead: The same of tails.
        has_tails: A hit needs the tail at its end.
        is_shared: All ranks load what one has stored.
        shares_disk: The same, but what only another rank has stored comes from a disk.
    """

    unit_tokens: int
    rows_ahead: int
    tails_ahead: int
    has_tails: bool
    is_shared: bool
    shares_disk: bool = False


class CacheRules(msgspec.Struct, array_like=True, frozen=True):
    """How the names are to be read.

    Attributes:
        groups: By KV cache group.
        engine: What holds for all groups.
        check: See :func:`~vllm_ascend.dp_routing.names.names_check`.
        tier: Of the tier below; ``None``: there is none.
    """

    groups: tuple[GroupRule, ...]
    engine: EngineRules
    check: int
    tier: TierRules | None = None


class CacheNews(msgspec.Struct, array_like=True, omit_defaults=True, frozen=True, gc=False):
    """One message of one rank.

    Attributes:
        start: A random number of the rank's start. Another one: the rank was started anew.
        number: Counts the rank's messages from 1. A gap: some were lost.
        changes: By group.
        rules: Given where the message begins anew: nothing said before holds any longer.
    """

    start: int
    number: int
    changes: tuple[Change, ...] = ()
    rules: CacheRules | None = None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(CacheNews)


def encode_news(news: CacheNews) -> bytes:
    """Return a message as bytes."""
    return _ENCODER.encode(news)


def decode_news(message: bytes) -> CacheNews:
    """Return what :func:`encode_news` made bytes of.

    Raises:
        msgspec.DecodeError: It is no such message.
    """
    return _DECODER.decode(message)


def pack_names(names: Iterable[int]) -> bytes:
    """Return 64-bit names in a row, little-endian."""
    packed = array("q", names)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_names(packed: bytes) -> array:
    """Return what :func:`pack_names` packed.

    Raises:
        ValueError: The bytes are not whole names.
    """
    names = array("q")
    names.frombytes(packed)
    if sys.byteorder == "big":
        names.byteswap()
    return names
