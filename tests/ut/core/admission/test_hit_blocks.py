# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a hit are copied, which it rests on, and how many are needed behind it."""

from __future__ import annotations

import pytest
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher

from tests.ut.core.helpers import make_request
from tests.ut.core.real_groups import compressed, full, make_groups, window
from vllm_ascend.core.admission.hit_blocks import blocks_for_next_chunk, copied_groups, tail_of_hit

REQUEST = make_request("r", list(range(64)), get_request_block_hasher(4, sha256))


@pytest.mark.parametrize(
    ("hit", "num_blocks", "copied"),
    [
        (16, (1, 1, 4), [1]),  # whole blocks of the first group, half a block of the second
        (20, (2, 1, 5), [0, 1]),
        (32, (2, 1, 8), []),
    ],
)
def test_the_last_block_of_a_group_is_copied_if_the_hit_ends_inside_it(hit, num_blocks, copied):
    """Blocks of 16 and 32 tokens in compressed groups, of 4 in a window."""
    pool = BlockPool(20, True, 4)
    groups = make_groups(
        compressed(4, 4), compressed(4, 8), window(4, 9), alignment=4, ends_inside_blocks=True
    )
    blocks = tuple(pool.get_new_blocks(count) for count in num_blocks)
    assert [group.id for group in copied_groups(groups, blocks, hit)] == copied


def test_a_hit_rests_on_the_tails_of_its_windows():
    """Windows of 9 and 5 tokens before token 16: [8, 16) and [12, 16)."""
    pool = BlockPool(20, True, 4)
    groups = make_groups(window(4, 9), window(4, 5), alignment=4, pool=pool)
    hits = []
    for group in groups:
        blocks = pool.get_new_blocks(4)
        pool.cache_full_blocks(REQUEST, blocks, 0, 4, 4, group.id)
        hits.append(blocks)
    tail = tail_of_hit(groups, tuple(hits), 16)
    assert [(each.block, each.start_token) for each in tail] == [
        (hits[0][2], 8),
        (hits[0][3], 12),
        (hits[1][3], 12),
    ]
    assert all(each.is_intact for each in tail)
    pool.free_blocks(hits[1])
    pool._maybe_evict_cached_block(hits[1][3])
    assert [each.is_intact for each in tail] == [True, True, False]


def test_a_hit_does_not_rest_on_blocks_without_a_name():
    pool = BlockPool(20, True, 4)
    (group,) = make_groups(window(4, 5), alignment=4, pool=pool)
    with pytest.raises(AssertionError, match="a hit rests on cached blocks"):
        tail_of_hit([group], (pool.get_new_blocks(4),), 16)


class Admission:
    """A request of 64 tokens that hits 32 of them, in one group with blocks of 4."""

    def __init__(self, spec, num_null: int = 0) -> None:
        self.pool = BlockPool(40, True, 4)
        (self.group,) = make_groups(spec, alignment=4, pool=self.pool)
        self.hit = [self.pool.null_block] * num_null + self.pool.get_new_blocks(8 - num_null)

    def needed(self, num_tokens: int, *, most: int | None, is_sparse: bool = False) -> int:
        return blocks_for_next_chunk(
            self.group, "r", num_tokens, self.hit, 32, 64, most=most, is_sparse=is_sparse
        )


@pytest.mark.parametrize(
    ("num_tokens", "most", "blocks"),
    [(36, None, 1), (64, None, 8), (64, 100, 8), (64, 5, 5), (64, 0, 0)],
)
def test_the_blocks_behind_a_hit_of_full_attention(num_tokens, most, blocks):
    admission = Admission(full(4))
    for block in admission.hit:
        assert block.ref_cnt == 1  # in use, so the hit itself takes no free block
    assert admission.needed(num_tokens, most=most) == blocks


def test_a_window_needs_memory_behind_a_long_hit():
    """Two blocks of the hit are real; vLLM's cap counts from the first token and leaves nothing."""
    admission = Admission(window(4, 9), num_null=6)
    assert admission.needed(64, most=6) == 6
    assert admission.needed(40, most=6) == 2


def test_what_a_request_holds_already_counts_towards_the_most_it_may():
    """A connector has loaded two blocks; the null block in front of them is nobody's memory."""
    admission = Admission(full(4))
    held = [admission.pool.null_block, *admission.pool.get_new_blocks(2)]
    admission.group.manager.req_to_blocks["r"] = held
    admission.hit = []
    assert admission.needed(64, most=6) == 4
    assert admission.needed(64, most=2) == 0
    assert admission.needed(64, most=1) == 0
    assert admission.needed(64, most=None) == 13


def test_of_sparse_state_all_that_it_may_hold_is_asked_for():
    """Which blocks will be real depends on how the prompt is cut into steps."""
    admission = Admission(window(4, 9), num_null=6)
    assert admission.needed(36, most=7, is_sparse=True) == 7
    assert admission.needed(36, most=None, is_sparse=True) == 1
