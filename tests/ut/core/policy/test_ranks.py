# SPDX-License-Identifier: Apache-2.0
"""Which rank a boundary has: tables, and all boundaries of small ranges."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.core.policy.ranks import Rank, ranked_boundaries, spare_rank, spare_unit


def test_boundaries_have_the_rank_of_what_asks_for_them():
    """A chunk of [4096, 12288), of which 8192 is kept and 12288 rolls along."""
    ranked = ranked_boundaries(
        4096,
        12_288,
        alignment=2048,
        kept=[8192],
        rolling=[12_288],
        keeps_spares=True,
        spare_unit=2048,
    )
    assert ranked == {
        Rank.SPARE: [6144, 10_240],
        Rank.SPARE_4: [],
        Rank.SPARE_16: [],
        Rank.SPARE_64: [],
        Rank.MARGINAL: [],
        Rank.ROLLING: [12_288],
        Rank.KEPT: [8192],
    }


def test_kept_boundaries_do_not_roll_and_old_ones_are_left_alone():
    ranked = ranked_boundaries(
        256,
        512,
        alignment=128,
        kept=[512],
        rolling=[256, 512],
        keeps_spares=False,
        spare_unit=128,
        rank=Rank.PROTECTED,
    )
    assert ranked == {Rank.ROLLING: [], Rank.PROTECTED: [512]}


@given(
    start=st.integers(0, 20),
    length=st.integers(0, 20),
    kept=st.sets(st.integers(1, 10)),
    rolling=st.sets(st.integers(1, 10)),
    marginal=st.sets(st.integers(1, 10)),
)
def test_every_boundary_has_one_rank(start, length, kept, rolling, marginal):
    end = start + length
    inside = [4 * b for b in sorted(kept) if start < 4 * b <= end]
    ranked = ranked_boundaries(
        start,
        end,
        alignment=4,
        kept=inside,
        rolling=[4 * b for b in sorted(rolling)],
        marginal=[4 * b for b in marginal],
        keeps_spares=True,
        spare_unit=8,
    )
    found = sorted(itertools.chain.from_iterable(ranked.values()))
    assert found == [b for b in range(4, end + 1, 4) if b > start]
    assert all(list(boundaries) == sorted(boundaries) for boundaries in ranked.values())


def test_spare_tails_of_round_boundaries_have_higher_ranks():
    ranks = [spare_rank(128 * ordinal, 128) for ordinal in range(1, 129)]
    every = {4: Rank.SPARE_4, 16: Rank.SPARE_16, 64: Rank.SPARE_64}
    for ordinal, rank in enumerate(ranks, start=1):
        spacing = max((s for s in every if ordinal % s == 0), default=None)
        assert rank is (Rank.SPARE if spacing is None else every[spacing])
    assert [ranks.count(rank) for rank in (Rank.SPARE, *every.values())] == [96, 24, 6, 2]
    assert {spare_rank(8 * n, 32) for n in range(1, 16)} == {Rank.SPARE}
    assert spare_rank(8 * 16, 32) is Rank.SPARE_4


@pytest.mark.parametrize(
    ("alignment", "tail_tokens", "unit"),
    [(128, 0, 128), (128, 128, 128), (128, 129, 256), (16, 1024, 1024), (16, 1040, 2048)],
)
def test_tails_that_are_a_unit_apart_have_no_block_in_common(alignment, tail_tokens, unit):
    assert spare_unit(alignment, tail_tokens) == unit
