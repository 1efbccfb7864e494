# SPDX-License-Identifier: Apache-2.0
"""What a connector moves, by address: bytes, and the tags of the rows that they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.upstream.npu_reference import tags, transfers
from tests.upstream.npu_reference.tags import UNWRITTEN, Memory, Plane, TagError

BLOCKS, PAGE_BYTES = 5, 40


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Two groups' caches in the same pages: 4 rows of 8 bytes, 2 of 16; the rest is padding."""
    made = Memory()
    raw = torch.arange(BLOCKS * PAGE_BYTES, dtype=torch.uint8)
    for group, (rows, width) in enumerate([(4, 8), (2, 16)]):
        strides = (PAGE_BYTES, width, width, 1)
        cache = raw.as_strided((BLOCKS, rows, 1, width), strides)
        made.add(f"layer{group}", group, 1, cache, raw.data_ptr())
        made.planes[group].tags[:] = torch.arange(2, 2 + BLOCKS * rows).view(BLOCKS, rows)
    tags.begin(made)
    yield made
    tags.begin(None)


def page(plane: Plane, block: int) -> int:
    """Return the address of a block of a plane."""
    return plane.cache[block].data_ptr()


def test_a_page_is_moved_with_the_tags_of_all_its_rows(memory):
    for plane in memory.planes:
        transfers.put(page(plane, 4), transfers.take(page(plane, 1), 32))
        assert torch.equal(plane.cache[4], plane.cache[1])
        assert torch.equal(plane.tags[4], plane.tags[1])


def test_pages_in_a_row_are_moved_at_once(memory):
    plane = memory.planes[0]
    before = plane.tags.clone()
    transfers.put(page(plane, 3), transfers.take(page(plane, 0), 2 * PAGE_BYTES))
    assert torch.equal(plane.tags[3:], before[:2])
    assert torch.equal(plane.tags[:3], before[:3])


def test_a_row_that_is_moved_in_part_may_not_be_read(memory):
    first, second = memory.planes
    transfers.put(page(first, 4) + 8, transfers.take(page(first, 1) + 8, 12))
    assert first.tags[4].tolist() == [18, 7, UNWRITTEN, 21]
    assert second.tags[4].tolist() == [UNWRITTEN, UNWRITTEN]


def test_rows_in_another_place_of_a_page_may_not_be_read(memory):
    first = memory.planes[0]
    transfers.put(page(first, 4) + 4, transfers.take(page(first, 1), 16))
    assert first.tags[4].tolist() == [UNWRITTEN, UNWRITTEN, UNWRITTEN, 21]


def test_rows_of_another_layer_may_not_be_read(memory):
    plane = memory.planes[0]
    content = transfers.take(page(plane, 1), 32).content
    transfers.put(page(plane, 4), transfers.Part(content, {7: ([0], [2])}))
    assert plane.tags[4].tolist() == [UNWRITTEN] * 4


def test_what_is_no_kv_cache_is_not_moved(memory):
    with pytest.raises(TagError, match="are in no KV cache"):
        transfers.take(torch.zeros(64).data_ptr(), 8)
    with pytest.raises(TagError, match="are in no KV cache"):
        transfers.take(page(memory.planes[0], 4), PAGE_BYTES + 1)


def test_nothing_is_moved_where_nothing_is_checked():
    with pytest.raises(TagError, match="nobody checks"):
        transfers.take(0, 8)
