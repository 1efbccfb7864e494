# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's specs: what a row is, how many a block has, how many tokens it covers."""

import pytest
import torch

from tests.release_marks import WHERE_BLOCKS_COUNT_ROWS
from vllm_ascend.core.layout.dsv4_specs import Dsv4Model, ascend_specs
from vllm_ascend.core.layout.specs import tokens_per_block


def kinds_of(specs) -> dict:
    return {
        "window": specs.window,
        "c4": specs.mla[4],
        "c128": specs.mla[128],
        "c4 state": specs.state[4],
        "c128 state": specs.state[128],
        "indexer": specs.indexer,
        "indexer state": specs.indexer_state,
    }


# Rows per block, tokens per block, elements of a row, bytes of a page.
FLASH_128 = {
    "window": (128, 128, 512, 131_072),
    "c4": (128, 512, 512, 131_072),
    "c128": (128, 16_384, 512, 131_072),
    "c4 state": (8, 8, 2048, 131_072),
    "c128 state": (32, 32, 1024, 131_072),
    "indexer": (128, 512, 128, 16_640),
    "indexer state": (8, 8, 512, 16_640),
}


@WHERE_BLOCKS_COUNT_ROWS
def test_deepseek_v4_flash_at_128_rows():
    told = {
        name: (spec.block_size, tokens_per_block(spec), spec.head_size, spec.page_size_bytes)
        for name, spec in kinds_of(ascend_specs(128)).items()
    }
    assert told == FLASH_128


def test_windows_reach_over_one_window_of_their_compressor_or_two():
    specs = kinds_of(ascend_specs(64))
    windows = {name: getattr(spec, "sliding_window", None) for name, spec in specs.items()}
    assert windows == {
        "window": 128,
        "c4": None,
        "c128": None,
        "c4 state": 8,
        "c128 state": 128,
        "indexer": None,
        "indexer state": 8,
    }


@WHERE_BLOCKS_COUNT_ROWS
def test_what_is_stored_in_which_type():
    specs = ascend_specs(32)
    assert specs.window.dtype == specs.mla[4].dtype == torch.bfloat16
    assert {spec.dtype for spec in (*specs.state.values(), specs.indexer_state)} == {torch.float32}
    assert (specs.indexer.dtype, specs.indexer.scale_dim) == (torch.int8, 1)
    assert specs.window.model_version == "deepseek_v4"
    assert specs.state[4].model_version is None, "a window without one is a compressor's state"


def test_a_smaller_model_has_smaller_rows_and_the_same_blocks():
    model = Dsv4Model(
        head_size=16, indexer_head_size=8, sliding_window=12, indexer_row={"dtype": torch.bfloat16}
    )
    specs = ascend_specs(32, model)
    assert (specs.window.sliding_window, specs.window.page_size_bytes) == (12, 32 * 16 * 2)
    assert (specs.indexer.page_size_bytes, specs.indexer_state.head_size) == (32 * 8 * 2, 32)
    assert specs.state[128].block_size == 8


def test_rows_that_do_not_scale_are_refused():
    with pytest.raises(ValueError, match="multiple of 16 rows"):
        ascend_specs(40)
