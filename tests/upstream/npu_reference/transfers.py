# SPDX-License-Identifier: Apache-2.0
"""What a connector moves into and out of a worker's KV cache: bytes by address, and their tags.

A connector's transport is given addresses and lengths alone. The tags of the rows that lie there
travel along, so that rows are checked in the engine that reads them, wherever they were computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import torch

from tests.upstream.npu_reference import tags
from tests.upstream.npu_reference.tags import UNWRITTEN, Memory, Plane


class Part(NamedTuple):
    """A stretch of a KV cache.

    Attributes:
        content: Its bytes.
        tags: Place of a plane -> for its rows that lie wholly inside, where each begins (bytes from
            the stretch's first), and its tag.
    """

    content: bytes
    tags: dict[int, tuple[list[int], list[int]]]


class _Rows(NamedTuple):
    """Rows of a plane that a stretch has a part of.

    Attributes:
        plane: The plane's place.
        blocks: ``[rows]``.
        rows: ``[rows]``, in their blocks.
        first_bytes: ``[rows]``, from the stretch's first byte; negative: it begins before.
        whole: ``[rows]``: whether it lies inside.
    """

    plane: int
    blocks: torch.Tensor
    rows: torch.Tensor
    first_bytes: torch.Tensor
    whole: torch.Tensor


def take(address: int, num_bytes: int) -> Part:
    """Return what lies at an address of this process.

    Raises:
        TagError: No KV cache whose rows are checked lies there.
    """
    memory = _memory()
    found = {}
    for rows in _rows(memory, address, num_bytes):
        known = memory.planes[rows.plane].tags[rows.blocks, rows.rows]
        found[rows.plane] = (rows.first_bytes[rows.whole].tolist(), known[rows.whole].tolist())
    return Part(ctypes.string_at(address, num_bytes), found)


def put(address: int, part: Part) -> None:
    """Write a stretch to an address of this process.

    Rows that it covers in part, and rows of other planes than those that it was taken from, hold
    nothing that may be read.

    Raises:
        TagError: No KV cache whose rows are checked lies there.
    """
    memory = _memory()
    for rows in _rows(memory, address, len(part.content)):
        first_bytes, known = part.tags.get(rows.plane, ([], []))
        fits = first_bytes == rows.first_bytes[rows.whole].tolist()
        written = torch.full_like(rows.blocks, UNWRITTEN)
        if fits:
            written[rows.whole] = torch.tensor(known, dtype=torch.long)
        memory.planes[rows.plane].tags[rows.blocks, rows.rows] = written
    ctypes.memmove(address, part.content, len(part.content))


def _memory() -> Memory:
    memory = tags.current()
    if memory is None:
        raise tags.TagError("a connector moves rows that nobody checks")
    return memory


def _rows(memory: Memory, address: int, num_bytes: int) -> Iterator[_Rows]:
    """Yield by plane the rows that lie in a stretch."""
    found = False
    for place, plane in enumerate(memory.planes):
        storage = plane.cache.untyped_storage()
        if not 0 <= address - storage.data_ptr() <= storage.nbytes() - num_bytes:
            continue
        found = True
        rows = _rows_of(place, plane, address, num_bytes)
        if len(rows.blocks):
            yield rows
    if not found:
        raise tags.TagError(f"a connector moves {num_bytes} bytes that are in no KV cache")


def _rows_of(place: int, plane: Plane, address: int, num_bytes: int) -> _Rows:
    cache = plane.cache
    page_bytes, row_bytes = (cache.stride(i) * cache.element_size() for i in (0, 1))
    offset = address - cache.data_ptr()  # of the stretch, from the plane's first row
    num_blocks, num_rows = plane.tags.shape
    # -1: a stretch may begin behind what the plane has of a page, or before.
    first = max(offset // page_bytes - 1, 0)
    end = max(min((offset + num_bytes) // page_bytes + 1, num_blocks), first)
    blocks = torch.arange(first, end).repeat_interleave(num_rows)
    rows = torch.arange(num_rows).repeat(end - first)
    first_bytes = blocks * page_bytes + rows * row_bytes - offset
    inside = (first_bytes > -row_bytes) & (first_bytes < num_bytes)
    blocks, rows, first_bytes = blocks[inside], rows[inside], first_bytes[inside]
    whole = (first_bytes >= 0) & (first_bytes + row_bytes <= num_bytes)
    return _Rows(place, blocks, rows, first_bytes, whole)
