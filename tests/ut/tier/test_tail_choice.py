# SPDX-License-Identifier: Apache-2.0
"""Which boundaries have their tail stored."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vllm_ascend.tier.tail_choice import KEPT, MARGINAL, TailChoice

# The rows of as many tokens as with DeepSeek-V4-Flash take the memory of a tail.
CHOICE = TailChoice(128, least_gain_tokens=1061)


@pytest.mark.parametrize(
    "start, end, prompt, junction, kept",
    [
        (0, 8192, 14_000, 0, []),  # the prompt's end is in a later chunk
        (8192, 14_000, 14_000, 0, [13_824]),
        (8192, 14_000, 14_000, 9088, [9088, 13_824]),
        (8192, 14_000, 14_000, 13_952, [13_824, 13_952]),  # somebody left it just there
        (0, 40_000, 40_001, 0, [32_768, 39_424]),
        (0, 128, 128, 0, []),  # a token must be left to compute
        (0, 129, 129, 0, [128]),
    ],
)
def test_the_ends_of_prompts_junctions_and_an_interval_are_kept(start, end, prompt, junction, kept):
    assert CHOICE.kept(start, end, CHOICE.of_prompt(prompt, junction).kept) == kept


def test_the_last_boundary_of_a_prompt_is_marginal_close_behind_a_kept_one():
    assert CHOICE.of_prompt(14_000, 0).marginal == {13_952}
    assert CHOICE.of_prompt(14_000, 13_952).marginal == frozenset()


def test_where_tails_are_small_both_boundaries_of_a_prompt_are_kept():
    choice = TailChoice(128, least_gain_tokens=100)
    prompt = choice.of_prompt(14_000, 0)
    assert choice.kept(8192, 14_000, prompt.kept) == [13_824, 13_952]
    assert not prompt.marginal


def test_drafts_need_the_unit_behind_a_boundary():
    choice = TailChoice(128, lookahead=128, least_gain_tokens=1061)
    prompt = choice.of_prompt(14_000, 0)
    assert choice.kept(8192, 14_000, prompt.kept) == [13_696]
    assert prompt.marginal == {13_824}


@pytest.mark.parametrize(
    "end, found",
    [
        (14_079, (KEPT, 0)),
        (14_080, (MARGINAL, 14_080)),
        (14_200, (MARGINAL, 14_080)),
        (15_104, (KEPT, 15_104)),  # 1,152 tokens behind the one kept before
    ],
)
def test_an_answer_has_the_last_boundary_that_it_passes(end, found):
    assert CHOICE.rolling(14_000, end, CHOICE.of_prompt(14_000, 0)) == found


def test_spare_tails_are_ranked_by_how_round_their_boundary_is():
    spares = {b: r for r, b in CHOICE.spare(0, 16_384, {512})}
    assert spares[1024] == 0 and spares[2048] == 1 and spares[8192] == 2
    assert 512 not in spares and 640 not in spares
    assert len(spares) == 31
    assert max(spares.values()) < MARGINAL


@given(
    prompt=st.integers(1, 200_000),
    chunks=st.lists(st.integers(1, 16_384), max_size=20),
    least_gain_tokens=st.integers(0, 4096),
    lookahead=st.sampled_from([0, 128]),
)
# It ends shortly behind a kept boundary, and with a multiple of the interval.
@example(prompt=65_537, chunks=[], least_gain_tokens=513, lookahead=0)
def test_chunks_of_a_prompt_keep_what_the_whole_prompt_keeps(
    prompt, chunks, least_gain_tokens, lookahead
):
    choice = TailChoice(128, lookahead=lookahead, least_gain_tokens=least_gain_tokens)
    ends = [end for end in itertools.accumulate(chunks) if end < prompt]
    pieces = list(itertools.pairwise([0, *ends, prompt]))
    boundaries = choice.of_prompt(prompt, 0)
    whole = choice.kept(0, prompt, boundaries.kept)
    assert [b for piece in pieces for b in choice.kept(*piece, boundaries.kept)] == whole
    assert all(boundary % 128 == 0 and 0 < boundary <= prompt for boundary in whole)
    assert boundaries.marginal.isdisjoint(whole)


@given(prompt=st.integers(1300, 200_000), least_gain_tokens=st.integers(0, 4096))
def test_no_prompt_loses_more_than_its_end_and_five_units(prompt, least_gain_tokens):
    choice = TailChoice(128, least_gain_tokens=least_gain_tokens)
    deepest = max(choice.kept(0, prompt, choice.of_prompt(prompt, 0).kept))
    assert prompt - deepest <= 5 * 128 + 1
