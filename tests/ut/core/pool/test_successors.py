# SPDX-License-Identifier: Apache-2.0
"""A block of a draft group serves only requests that go on as the one that wrote it."""

from __future__ import annotations

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher
from vllm.v1.request import Request

import vllm_ascend.patch.platform  # noqa: F401 - installs the patches
from tests.ut.core.helpers import make_request
from vllm_ascend.core.pool.successors import SuccessorHashes

GRANULE = 4
GROUP, OTHER_GROUP = 1, 2


def request(tokens: list[int], name: str = "r") -> Request:
    return make_request(name, tokens, get_request_block_hasher(GRANULE, sha256))


def cached_blocks(of: Request, count: int) -> list[KVCacheBlock]:
    """Return blocks of one granule each that hold the request's first tokens."""
    pool = BlockPool(10, True, GRANULE)
    blocks = pool.get_new_blocks(count)
    pool.cache_full_blocks(of, blocks, 0, count, GRANULE, GROUP)
    return blocks


def test_the_copy_that_was_followed_by_the_same_tokens_is_picked():
    one, two = request([*range(4), 7, 7, 7, 7]), request([*range(4), 8, 8, 8, 8])
    successors, copies = SuccessorHashes(GRANULE), [*cached_blocks(one, 1), KVCacheBlock(9)]
    successors.remember(GROUP, one, copies[0], 4)
    successors.remember(GROUP, two, copies[1], 4)
    for asked, expected in ((one, copies[0]), (two, copies[1])):
        assert successors.pick(copies, asked.block_hashes, 4) is expected
    assert successors.pick(copies, request([*range(4), 7, 7, 7, 8]).block_hashes, 4) is None


def test_a_request_that_ends_with_the_block_gets_none():
    one = request(list(range(8)))
    successors, (block,) = SuccessorHashes(GRANULE), cached_blocks(one, 1)
    successors.remember(GROUP, one, block, 4)
    assert successors.pick([block], request(list(range(7))).block_hashes, 4) is None


def test_a_block_that_ends_inside_a_granule_needs_no_successor():
    """Its name covers the token behind it."""
    successors, blocks = SuccessorHashes(GRANULE), [KVCacheBlock(1), KVCacheBlock(2)]
    successors.remember(GROUP, request(list(range(4))), blocks[0], 2)
    assert successors.pick(blocks, [], 2) is blocks[0]
    assert successors.pick([], [], 2) is None


def grown(to: int) -> tuple[SuccessorHashes, Request, list[KVCacheBlock]]:
    """A request of 8 tokens, whose second block was cached before its successor was known."""
    first = request(list(range(8)))
    successors, blocks = SuccessorHashes(GRANULE), cached_blocks(first, 2)
    successors.remember(GROUP, first, blocks[1], 8)
    assert successors.pick(blocks[1:], request(list(range(12))).block_hashes, 8) is None
    first.append_output_token_ids(list(range(8, to)))
    return successors, first, blocks


@pytest.mark.parametrize(("tokens", "is_known"), [(11, False), (12, True)])
def test_a_successor_is_noted_as_soon_as_the_request_has_it(tokens, is_known):
    successors, first, blocks = grown(tokens)
    successors.resolve_pending(GROUP, first)
    picked = successors.pick(blocks[1:], request(list(range(12))).block_hashes, 8)
    assert picked is (blocks[1] if is_known else None)


def test_another_groups_pending_blocks_stay_pending():
    successors, first, blocks = grown(12)
    successors.resolve_pending(OTHER_GROUP, first)
    assert successors.pick(blocks[1:], first.block_hashes, 8) is None
    successors.resolve_pending(GROUP, first)
    assert successors.pick(blocks[1:], first.block_hashes, 8) is blocks[1]


def test_a_pending_block_that_was_reused_is_passed_over():
    """Its window moved on, and the block holds somebody else's tokens by now."""
    successors, first, blocks = grown(12)
    blocks[1].reset_hash()
    successors.resolve_pending(GROUP, first)
    assert successors.pick(blocks[1:], first.block_hashes, 8) is None


def test_a_request_that_goes_takes_what_is_pending_with_it():
    successors, first, blocks = grown(12)
    successors.forget("r")
    successors.resolve_pending(GROUP, first)
    assert successors.pick(blocks[1:], first.block_hashes, 8) is None


def test_caching_a_block_anew_overwrites_what_followed_it():
    one, short = request(list(range(8))), request(list(range(4)), "short")
    successors, (block,) = SuccessorHashes(GRANULE), cached_blocks(one, 1)
    successors.remember(GROUP, one, block, 4)
    successors.remember(GROUP, short, block, 4)
    assert successors.pick([block], one.block_hashes, 4) is None, "nobody knows yet what follows"
