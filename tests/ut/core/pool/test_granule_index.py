# SPDX-License-Identifier: Apache-2.0
"""Which blocks hold the rows of a granule."""

import gc

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from vllm_ascend.core.pool.granule_index import GranuleIndex


def hashes(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


def chained(tokens: list[int]) -> list[bytes]:
    """Names that tell the whole prefix and are equally long, as real ones are."""
    return [bytes(tokens[: i + 1]).ljust(MOST_TOKENS, b".") for i in range(len(tokens))]


MOST_TOKENS = 6
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=MOST_TOKENS)


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


def test_others_that_hold_a_granule_are_of_the_same_group_and_among_the_given():
    index, names = GranuleIndex(), hashes(3)
    first, second, foreign = map(KVCacheBlock, (1, 2, 3))
    every, none = dict.fromkeys((1, 2, 3)), dict[int, None]()
    index.enter(0, first, names)
    assert list(index.others(first, names[1], every)) == []
    index.enter(0, second, names[:2])
    index.enter(1, foreign, names)
    for among, found in ((every, [second]), ({2: None}, [second]), ({3: None}, []), (none, [])):
        assert list(index.others(first, names[1], among)) == found
    assert list(index.others(first, names[2], every)) == []
    assert list(index.others(second, names[0], every)) == [first]


def test_blocks_are_entered_without_a_container_for_each():
    """Python's garbage collector counts those that are new, and walks the prompts' token lists."""
    index, blocks = GranuleIndex(), list(map(KVCacheBlock, range(500)))
    gc.collect()
    before = len(gc.get_objects())
    for block in blocks:
        index.enter(0, block, [bytes([block.block_id >> 8, block.block_id & 255])])
    assert len(gc.get_objects()) - before < 20


def test_a_growing_block_is_evicted_with_everything():
    index, block = GranuleIndex(), KVCacheBlock(3)
    index.enter(0, block, hashes(4)[:1])
    index.enter(0, block, hashes(4)[1:])
    assert index.longest_match(0, hashes(4), 0, 4) == 4
    assert index.num_entries() == 4
    index.evict(block)
    assert (len(index), index.num_entries()) == (0, 0)


def test_a_match_begins_with_the_block_and_ends_with_what_is_entered():
    """Granules 4 to 7 are one block, of which three are entered."""
    index, names = GranuleIndex(), hashes(8)
    index.enter(2, KVCacheBlock(5), names[4:7])
    assert index.longest_match(2, names, 4, 8) == 7
    assert index.longest_match(2, names, 4, 6) == 6, "no further than asked for"
    assert index.longest_match(2, names, 0, 4) == 0, "the block before is another one"
    assert index.longest_match(1, names, 4, 8) == 4, "so is another group's"


def test_blocks_that_share_granules_are_found_until_the_last_one_is_evicted():
    index, names = GranuleIndex(), hashes(3)
    one, two = KVCacheBlock(1), KVCacheBlock(2)
    index.enter(0, one, names[:2])
    index.enter(0, two, names)
    assert index.blocks_of(0, names[1]) == {1, 2} and index.blocks_of(0, names[2]) == {2}
    assert (len(index), index.num_entries()) == (2, 5)
    index.evict(two)
    assert index.find(0, names[0]) is one and index.find(0, names[2]) is None
    assert one in index and two not in index
    assert (index.granules_of(1), index.group_of) == (names[:2], {1: 0})
    index.evict(two)
    index.clear()
    assert index.find(0, names[0]) is None and one not in index
