# SPDX-License-Identifier: Apache-2.0
"""What prompts cost, token by token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend_evaluation.replay.prefill_work import DOUBLING_DEPTH, prefill_work

_LENGTHS = st.integers(0, 1 << 20)


@given(first=_LENGTHS, more=_LENGTHS)
def test_a_deep_token_costs_more_than_a_shallow_one(first: int, more: int):
    behind = prefill_work(first + more) - prefill_work(first)
    assert behind >= prefill_work(more) >= more


def test_the_cost_of_a_token_doubles_with_the_depth_that_says_so():
    at_the_start = prefill_work(1)
    deep = prefill_work(DOUBLING_DEPTH + 1) - prefill_work(DOUBLING_DEPTH)
    assert deep == pytest.approx(2 * at_the_start, rel=1e-4)


def test_the_depth_follows_from_the_public_configuration_of_the_model():
    operations = 2  # a multiplication and an addition
    layers, c4_layers, c128_layers, heads, head_size = 43, 21, 20, 64, 512
    rows = 128 * layers + 512 * c4_layers  # of windows, and selected by the indexer
    anywhere = operations * 13e9 + 2 * operations * rows * heads * head_size
    indexer = operations * 64 * 128 / 4 * c4_layers
    compressed = 2 * operations * heads * head_size / 128 * c128_layers
    assert anywhere / (indexer + compressed) == pytest.approx(DOUBLING_DEPTH, rel=0.05)
