# SPDX-License-Identifier: Apache-2.0
"""Blocks that were not loaded, in tables of several groups."""

import pytest

from vllm_ascend.core.connectors.failed_loads import blocks_to_evict, lost_blocks

# Blocks of 8 and of 4 tokens; the second group has forgotten its first two blocks.
TABLES = [[1, 2, 3], [0, 0, 4, 5, 6]]


def test_the_null_block_of_a_reported_table_is_not_lost():
    reported = {block_id for table in TABLES for block_id in table}
    assert lost_blocks(reported) == {1, 2, 3, 4, 5, 6}
    assert blocks_to_evict(TABLES, [8, 4], {1}) == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    "invalid, evicted",
    [
        (set(), set()),
        ({9}, set()),
        ({3}, {3, 6}),  # from token 16 on
        ({5}, {2, 3, 5, 6}),  # from token 12 on: block 2 holds tokens 8 to 15
        ({6, 4}, {2, 3, 4, 5, 6}),
    ],
)
def test_everything_from_the_first_invalid_token_on_goes(invalid, evicted):
    assert blocks_to_evict(TABLES, [8, 4], invalid) == evicted
