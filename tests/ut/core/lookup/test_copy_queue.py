# SPDX-License-Identifier: Apache-2.0
"""How long the sources of block copies stay referenced, with and without a connector."""

import pytest
from vllm.v1.core.block_pool import BlockPool

from vllm_ascend.core.lookup.copy_queue import CopyQueue, KVCacheBlockCopy


@pytest.fixture
def pool():
    return BlockPool(10, True, 4)


def queue(copies: CopyQueue, pool: BlockPool, request_id: str):
    source, private = pool.get_new_blocks(2)
    copies.queue(request_id, source, private)
    return source, private


def test_on_one_stream_the_next_step_releases(pool):
    copies = CopyQueue(pool)
    source, private = queue(copies, pool, "a")
    assert copies.take() == [KVCacheBlockCopy(1, 2)]
    assert copies.take() is None, "each is handed out once"
    assert source.ref_cnt == 1
    copies.new_step_starts()
    assert (source.ref_cnt, private.ref_cnt, len(copies)) == (0, 1, 0)


def test_on_one_stream_the_end_of_the_request_releases(pool):
    copies = CopyQueue(pool)
    sources = [queue(copies, pool, "a")[0]]
    copies.take()
    sources.append(queue(copies, pool, "a")[0])
    other, _ = queue(copies, pool, "b")
    copies.forget("a")
    copies.new_step_starts()
    assert [source.ref_cnt for source in sources] == [0, 0], "released once"
    assert other.ref_cnt == 1 and copies.take() == [KVCacheBlockCopy(5, 6)]


def test_beside_a_connector_only_the_steps_output_releases(pool):
    copies = CopyQueue(pool, until_confirmed=True)
    (first, _), (second, _) = queue(copies, pool, "a"), queue(copies, pool, "b")
    one = copies.take()
    copies.new_step_starts()
    third, _ = queue(copies, pool, "c")
    two = copies.take()
    copies.forget("a")
    copies.forget("c")
    assert [block.ref_cnt for block in (first, second, third)] == [1, 1, 1]
    assert one is not None and two is not None
    copies.confirm(list(one))  # an equal list is another step's
    assert len(copies) == 3
    copies.confirm(one)
    assert [block.ref_cnt for block in (first, second, third)] == [0, 0, 1]
    copies.confirm(one)
    copies.confirm(two)
    assert third.ref_cnt == 0 and not len(copies)


def test_beside_a_connector_what_was_never_handed_out_is_dropped_at_once(pool):
    copies = CopyQueue(pool, until_confirmed=True)
    source, _ = queue(copies, pool, "a")
    copies.forget("a")
    assert source.ref_cnt == 0 and copies.take() is None


def test_a_reset_releases_what_no_request_is_left_to_read(pool):
    copies = CopyQueue(pool, until_confirmed=True)
    source, private = queue(copies, pool, "a")
    step = copies.take()
    copies.prepare_reset()
    assert source.ref_cnt == 1, "the request still holds its copy"
    pool.free_blocks([private])
    copies.prepare_reset()
    assert source.ref_cnt == 0
    assert step is not None
    copies.confirm(step)
    assert pool.get_num_free_blocks() == 9
