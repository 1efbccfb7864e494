# SPDX-License-Identifier: Apache-2.0
"""Names of blocks, entries of granules, and copies until they are dispatched."""

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.lookup.copy_queue import CopyQueue, KVCacheBlockCopy
from vllm_ascend.core.pool.block_names import BlockNames
from vllm_ascend.core.pool.granule_index import GranuleIndex


def hashes(count: int, branch: int = 0) -> list[bytes]:
    return [bytes([branch, i]) * 16 for i in range(count)]


# Names


def test_a_block_that_ends_with_a_granule_bears_its_hash():
    block_hashes = hashes(256)
    assert BlockNames(block_hashes, 128, 128)[3] == block_hashes[3]
    assert BlockNames(block_hashes, 128, 16_384)[1] == block_hashes[255]
    assert BlockNames(block_hashes, 128, 32)[7] == block_hashes[1]
    assert len(BlockNames(block_hashes, 128, 16_384)) == 2
    assert len(BlockNames(block_hashes, 128, 32)) == 1024


@given(st.sampled_from([2, 4, 8, 16, 32, 64, 128]), st.integers(1, 6))
def test_small_blocks_of_a_prompt_all_have_names_of_their_own(block_tokens, num_granules):
    names = BlockNames(hashes(num_granules), 128, block_tokens)
    assert len({names[i] for i in range(len(names))}) == len(names)
    assert list(names.first(len(names) + 5)) == [names[i] for i in range(len(names))]


def test_the_first_names_are_sliced_for_coarse_blocks():
    names = BlockNames(hashes(13), 128, 512)
    assert list(names.first(2)) == [names[0], names[1]]
    assert list(names.first(99)) == [names[0], names[1], names[2]]


# Granules


def chained(tokens: list[int]) -> list[bytes]:
    """Names that tell the whole prefix, as real ones do."""
    return [bytes(tokens[: i + 1]) for i in range(len(tokens))]


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=6)


@given(st.lists(PROMPTS, max_size=12), st.lists(PROMPTS, min_size=1, max_size=6), st.data())
def test_the_longest_match_is_what_a_scan_would_find(contents, probes, data):
    """Blocks share granules up to where they part; some are evicted again."""
    index = GranuleIndex()
    entered = dict(enumerate(map(chained, contents)))
    for block_id, granules in entered.items():
        index.enter(0, KVCacheBlock(block_id), granules)
    for block_id in data.draw(st.sets(st.integers(0, 11))) & entered.keys():
        index.evict(KVCacheBlock(block_id))
        del entered[block_id]
    for probe in map(chained, probes):
        scan = 0
        while scan < len(probe) and any(probe[scan] in own for own in entered.values()):
            scan += 1
        assert index.longest_match(0, probe, 0, len(probe)) == scan
        for granule in probe:
            found = index.find(0, granule)
            holders = {block_id for block_id, own in entered.items() if granule in own}
            assert (found is None) == (not holders)
            assert found is None or found.block_id in holders
        assert index.longest_match(1, probe, 0, len(probe)) == 0
    assert len(index) == len(entered)


def test_a_growing_block_is_evicted_with_everything():
    index, block = GranuleIndex(), KVCacheBlock(3)
    index.enter(0, block, hashes(4)[:1])
    index.enter(0, block, hashes(4)[1:])
    assert index.longest_match(0, hashes(4), 0, 4) == 4
    assert index.num_entries() == 4
    index.evict(block)
    assert (len(index), index.num_entries(), index.key_bytes()) == (0, 0, 0)


# Copies


def make_pool() -> BlockPool:
    return BlockPool(10, True, 4)


def queue(copies: CopyQueue, pool: BlockPool, name: str) -> tuple[KVCacheBlock, KVCacheBlock]:
    source, private = pool.get_new_blocks(2)
    copies.queue(name, source, private)
    return source, private


def test_a_source_is_held_until_the_next_step():
    pool = make_pool()
    copies = CopyQueue(pool)
    source, private = queue(copies, pool, "a")
    assert copies.take() == [KVCacheBlockCopy(source.block_id, private.block_id)]
    assert copies.take() is None, "each is handed out once"
    assert source.ref_cnt == 1
    copies.new_step_starts()
    assert (source.ref_cnt, private.ref_cnt, len(copies)) == (0, 1, 0)


def test_a_copy_that_is_never_dispatched_is_dropped_with_its_request():
    pool = make_pool()
    copies = CopyQueue(pool)
    gone, _ = queue(copies, pool, "gone")
    stays, private = queue(copies, pool, "stays")
    copies.forget("gone")
    assert gone.ref_cnt == 0
    assert copies.take() == [KVCacheBlockCopy(stays.block_id, private.block_id)]


def test_a_request_that_ends_releases_its_source():
    """There may be no next step."""
    pool = make_pool()
    copies = CopyQueue(pool)
    source, _ = queue(copies, pool, "a")
    copies.take()
    copies.forget("a")
    copies.new_step_starts()
    assert source.ref_cnt == 0
