# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a hit are copied."""

from __future__ import annotations

import pytest
from vllm.v1.core.block_pool import BlockPool

from tests.ut.core.real_groups import compressed, make_groups, window
from vllm_ascend.core.lookup.partial_hits import copied_groups


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
