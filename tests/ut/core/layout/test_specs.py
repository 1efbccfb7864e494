# SPDX-License-Identifier: Apache-2.0
"""What a tail is made of, derived from the specs, against the compressors' own arithmetic."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.core import layouts
from vllm_ascend.core.layout.dsv4_specs import Dsv4Model, ascend_specs
from vllm_ascend.core.layout.specs import (
    ReadSpan,
    granule_tokens,
    is_compressor_state,
    is_windowed,
    read_span,
    tokens_per_block,
)
from vllm_ascend.dry_run.layouts import dsv4_flash_a3
from vllm_ascend_evaluation.oracle.groups import rules_of
from vllm_ascend_evaluation.oracle.reads import sliding_rows_read, state_rows_read

LAYOUTS = {
    "a3-128": dsv4_flash_a3(128),
    "a3-64": dsv4_flash_a3(64),
    "a3-32": dsv4_flash_a3(32),
    "tiny": layouts.dsv4_rows_tiny(),
    "gemma": layouts.gemma_like(4, 9),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tail_starts_with_the_first_row_that_is_read(name):
    """At aligned boundaries and at all others."""
    specs = list(LAYOUTS[name].specs.values())
    for spec in filter(is_windowed, specs):
        start, rules = read_span(spec, specs).start, rules_of(spec)
        for boundary in range(1, 400):
            if is_compressor_state(spec):
                read = state_rows_read(boundary, ratio=rules.ratio, overlapping=rules.overlapping)
                assert start(boundary) == min(read.start, boundary), boundary
            else:
                read = sliding_rows_read(boundary, boundary + 1, window=rules.window)
                assert start(boundary) == read.start, boundary


@given(st.integers(0, 300), st.integers(1, 128), st.integers(0, 2000))
def test_a_row_is_used_until_no_later_start_is_at_or_before_it(behind, step, token):
    span = ReadSpan(behind, step)
    end = span.end_of_use(token)
    assert end > token
    assert span.start(end) > token or end == 0
    assert span.start(end - 1) <= token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_models_own_window_is_no_compressor_state(dtype):
    """An fp32 model's windows are fp32, too; taken for state they would not be read at a resume."""
    kinds = ascend_specs(128, Dsv4Model(dtype=dtype, indexer_row={"dtype": dtype}))
    specs = [kinds.window, *kinds.mla.values(), *kinds.state.values()]
    assert not is_compressor_state(kinds.window)
    assert all(map(is_compressor_state, (*kinds.state.values(), kinds.indexer_state)))
    assert read_span(kinds.window, specs).start(1024) == 1024 - 127


def test_a_tail_of_deepseek_v4_is_three_blocks():
    """Two groups of windows, one C4 state; the C128 state is closed at the boundary."""
    specs = list(LAYOUTS["a3-128"].specs.values())
    kinds = {spec.block_size: spec for spec in specs if is_windowed(spec)}
    blocks = {
        size: 1024 // size - read_span(spec, specs).start(1024) // size
        for size, spec in kinds.items()
    }
    assert blocks == {128: 1, 8: 1, 32: 0}


def test_where_ratios_leave_a_doubt_the_whole_window_is_taken():
    """A window of 16 could be one of ratio 16 or two of ratio 8."""
    specs = list(layouts.dsv4_rows_tiny().specs.values())
    state = next(s for s in specs if is_windowed(s) and is_compressor_state(s))
    without_ratios = [s for s in specs if is_windowed(s)]
    assert read_span(state, without_ratios).start(64) == 64 - state.sliding_window + 1


@pytest.mark.parametrize(
    ("name", "granule"),
    [("a3-128", 128), ("a3-64", 128), ("a3-32", 128), ("tiny", 16), ("gemma", 4)],
)
def test_the_granule(name, granule):
    specs = list(LAYOUTS[name].specs.values())
    assert granule_tokens(specs) == granule
    assert all(
        tokens_per_block(spec) % granule == 0 or granule % tokens_per_block(spec) == 0
        for spec in specs
    )
