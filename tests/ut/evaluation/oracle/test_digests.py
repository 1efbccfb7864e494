# SPDX-License-Identifier: Apache-2.0
"""Digests name contents: equal exactly for equal keys and equal prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend_evaluation.oracle.digests import GARBAGE, PrefixDigests, mix, next_token

tokens = st.lists(st.integers(0, 2**31), max_size=40)


def test_mix_is_splitmix64() -> None:
    """The first output of splitmix64 seeded with 0, as published with the algorithm."""
    assert mix(0) == 0xE220A8397B1DCDAF


@given(tokens, st.integers(0, 40))
def test_appending_and_extending_agree(values: list[int], cut: int) -> None:
    """Prefill extends, decoding appends: the same tokens must get the same digests."""
    whole = PrefixDigests("k", values)
    grown = PrefixDigests("k", values[:cut])
    for value in values[cut:]:
        grown.append(value)
    assert np.array_equal(whole.array, grown.array)
    assert grown.tokens == values


@given(tokens, tokens)
def test_digests_are_equal_exactly_for_equal_prefixes(left: list[int], right: list[int]) -> None:
    one, other = PrefixDigests(None, left), PrefixDigests(None, right)
    for length in range(min(len(left), len(right)) + 1):
        assert (one[length] == other[length]) == (left[:length] == right[:length])


def test_order_and_length_matter() -> None:
    """A prefix sum of tokens alone would confuse these."""
    digests = [PrefixDigests(None, t)[len(t)] for t in ([1, 2], [2, 1], [3], [0, 3], [0, 0, 3])]
    assert len(set(digests)) == len(digests)
    assert min(digests) > GARBAGE


def test_the_key_separates_contents() -> None:
    """Requests with different salts or adapters never share rows."""
    assert PrefixDigests(("a", None), [1])[1] != PrefixDigests(("b", None), [1])[1]


@given(tokens, st.integers(0, 50), tokens)
def test_truncating_forgets(values: list[int], cut: int, others: list[int]) -> None:
    digests = PrefixDigests(None, values)
    digests.truncate(cut)
    digests.extend(others)
    expected = PrefixDigests(None, values[:cut] + others)
    assert np.array_equal(digests.array, expected.array)
    assert digests.tokens == expected.tokens


def test_asking_for_unknown_tokens_raises() -> None:
    with pytest.raises(IndexError):
        PrefixDigests(None, [1, 2])[3]


def test_equal_prefixes_continue_equally_unless_told_otherwise() -> None:
    digest = PrefixDigests(None, [1, 2, 3])[3]
    assert next_token(digest, 0, 1000) == next_token(digest, 0, 1000)
    assert len({next_token(digest, nonce, 1 << 40) for nonce in range(50)}) == 50
