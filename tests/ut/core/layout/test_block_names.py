# SPDX-License-Identifier: Apache-2.0
"""What blocks of every size are called, by the hashes of one request."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.core.layout.block_names import BlockNames


def hashes(count: int) -> list[bytes]:
    return [bytes([i]) * 32 for i in range(count)]


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


def test_a_block_that_ends_inside_a_granule_is_named_by_its_place():
    """Blocks of 32 tokens, the first four of which lie in granule 0."""
    names = BlockNames(hashes(2), 128, 32)
    zero, one = hashes(2)
    assert [names[i] for i in range(4)] == [zero + b"\0\1", zero + b"\0\2", zero + b"\0\3", zero]
    assert names[4] == one + b"\0\1"


def test_a_block_is_named_once_its_last_granule_is_complete():
    block_hashes = hashes(3)
    names = BlockNames(block_hashes, 128, 512)
    assert (len(names), list(names.first(1))) == (0, [])
    block_hashes.append(b"three")
    assert (len(names), list(names.first(1)), names[0]) == (1, [b"three"], b"three")
