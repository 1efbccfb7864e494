# SPDX-License-Identifier: Apache-2.0
"""How long the sources of block copies stay referenced, with and without a connector."""

import pytest
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.layout.units import GroupId
from vllm_ascend.core.lookup.copy_queue import CopyQueue, KVCacheBlockCopy
from vllm_ascend.core.pool.free_queue import Rank
from vllm_ascend.core.pool.tiered_block_pool import AscendBlockPool


@pytest.fixture
def pool():
    return AscendBlockPool(10, True, 4)


def make_queue(pool: AscendBlockPool, until_confirmed: bool = False) -> CopyQueue:
    def can_replace(request_id: str, source: KVCacheBlock, private: KVCacheBlock) -> bool:
        return private in pool.granules

    return CopyQueue(pool, can_replace=can_replace, until_confirmed=until_confirmed)


def queue(copies: CopyQueue, pool: AscendBlockPool, request_id: str):
    source, private = pool.get_new_blocks(2)
    copies.queue(request_id, source, private)
    return source, private


def queue_in_its_stead(copies: CopyQueue, pool: AscendBlockPool, request_id: str, name: bytes):
    """Queue the copy of a block with a granule, which nobody needs behind what is copied."""
    source, private = pool.get_new_blocks(2)
    pool.granules.enter(GroupId(0), source, [name])
    copies.queue(request_id, source, private, supersedes=True)
    return source, private


def test_on_one_stream_the_next_step_releases(pool):
    copies = make_queue(pool)
    source, private = queue(copies, pool, "a")
    assert copies.take() == [KVCacheBlockCopy(1, 2)]
    assert copies.take() is None, "each is handed out once"
    assert source.ref_cnt == 1
    copies.new_step_starts()
    assert (source.ref_cnt, private.ref_cnt, len(copies)) == (0, 1, 0)


def test_on_one_stream_the_end_of_the_request_releases(pool):
    copies = make_queue(pool)
    sources = [queue(copies, pool, "a")[0]]
    copies.take()
    sources.append(queue(copies, pool, "a")[0])
    other, _ = queue(copies, pool, "b")
    copies.forget("a")
    copies.new_step_starts()
    assert [source.ref_cnt for source in sources] == [0, 0], "released once"
    assert other.ref_cnt == 1 and copies.take() == [KVCacheBlockCopy(5, 6)]


def test_beside_a_connector_only_the_steps_output_releases(pool):
    copies = make_queue(pool, until_confirmed=True)
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
    copies = make_queue(pool, until_confirmed=True)
    source, _ = queue(copies, pool, "a")
    copies.forget("a")
    assert source.ref_cnt == 0 and copies.take() is None


def test_a_reset_releases_what_no_request_is_left_to_read(pool):
    copies = make_queue(pool, until_confirmed=True)
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


@pytest.mark.parametrize("until_confirmed", [False, True])
def test_a_source_goes_with_marginal_tails_once_its_copy_can_be_hit(pool, until_confirmed):
    copies = make_queue(pool, until_confirmed=until_confirmed)
    source, private = queue_in_its_stead(copies, pool, "a", b"one")
    needed, copy = queue_in_its_stead(copies, pool, "b", b"two")
    step = copies.take()
    pool.granules.enter(GroupId(0), private, [b"one"])
    assert pool.rank(source) is Rank.KEPT, "until the copy is certain to be made"
    copies.new_step_starts()
    copies.confirm(step)
    assert (source.ref_cnt, pool.rank(source)) == (0, Rank.MARGINAL)
    assert (needed.ref_cnt, pool.rank(needed)) == (0, Rank.KEPT), "its copy stands for nothing"
    assert pool.rank(private) is pool.rank(copy) is Rank.KEPT


def test_a_source_stays_whose_copy_is_never_made(pool):
    copies = make_queue(pool)
    source, private = queue_in_its_stead(copies, pool, "a", b"one")
    pool.granules.enter(GroupId(0), private, [b"one"])
    copies.forget("a")
    assert (source.ref_cnt, pool.rank(source)) == (0, Rank.KEPT)


def test_the_end_of_the_request_lets_go_of_a_source_as_well(pool):
    copies = make_queue(pool)
    source, private = queue_in_its_stead(copies, pool, "a", b"one")
    copies.take()
    pool.granules.enter(GroupId(0), private, [b"one"])
    copies.forget("a")
    assert (source.ref_cnt, pool.rank(source)) == (0, Rank.MARGINAL)
