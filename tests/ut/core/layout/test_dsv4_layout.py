# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's blocks and pages in numbers, on both devices."""

import pytest

from vllm_ascend.core.layout.dsv4_layout import A3, A5, Dsv4BlockSizes, dsv4_block_sizes, state_size


@pytest.mark.parametrize(
    ("rows", "device", "sizes"),
    [
        # compressed, SWA, C4 state, C128 state, bytes of pages, bytes of the indexer's pages
        (128, A3, (128, 128, 8, 32, 131_072, 16_640)),
        (64, A3, (64, 64, 4, 16, 65_536, 8_320)),
        (32, A3, (32, 32, 2, 8, 32_768, 4_160)),
        (128, A5, (128, 128, 8, 16, 81_920, 16_896)),
        (32, A5, (32, 32, 2, 4, 20_480, 4_224)),
    ],
)
def test_everything_scales_with_the_rows_of_a_block(rows, device, sizes):
    assert dsv4_block_sizes(rows, device) == Dsv4BlockSizes(*sizes)


@pytest.mark.parametrize("rows", [0, -16, 8, 100])
def test_sizes_that_do_not_scale_are_refused(rows):
    with pytest.raises(ValueError, match=rf"\({rows}\) must be a positive multiple of 16 rows"):
        dsv4_block_sizes(rows)


def test_a_state_row_has_values_and_scores_of_one_window_or_two():
    assert state_size(512, overlapping=True) == 2048
    assert state_size(512, overlapping=False) == 1024
    assert state_size(128, overlapping=True) == 512


@pytest.mark.parametrize("rows", [32, 64, 128])
def test_a_page_of_state_fits_into_a_page_of_its_cache(rows):
    sizes = dsv4_block_sizes(rows, A3)
    assert sizes.c4_state * 2048 * 4 <= sizes.page_bytes
    assert sizes.c128_state * 1024 * 4 <= sizes.page_bytes
    assert sizes.c4_state * 512 * 4 <= sizes.indexer_page_bytes
