# SPDX-License-Identifier: Apache-2.0
"""Which boundaries have their tail stored."""

from __future__ import annotations

import pytest

from vllm_ascend.tier.tail_choice import KEPT, TailChoice

CHOICE = TailChoice(128)


@pytest.mark.parametrize(
    "start, end, prompt, junction, kept",
    [
        (0, 8192, 14_000, 0, []),  # the prompt's end is in a later chunk
        (8192, 14_000, 14_000, 0, [13_952]),
        (8192, 14_000, 14_000, 9088, [9088, 13_952]),
        (0, 40_000, 40_001, 0, [32_768, 39_936]),
        (0, 128, 128, 0, []),  # a token must be left to compute
        (0, 129, 129, 0, [128]),
    ],
)
def test_the_ends_of_prompts_junctions_and_an_interval_are_kept(start, end, prompt, junction, kept):
    assert CHOICE.kept(start, end, prompt, junction) == kept


def test_drafts_need_the_unit_behind_a_boundary():
    assert TailChoice(128, lookahead=128).kept(8192, 14_000, 14_000, 0) == [13_824]


@pytest.mark.parametrize("end, boundary", [(14_079, 0), (14_080, 14_080), (14_200, 14_080)])
def test_an_answer_keeps_the_last_boundary_that_it_passes(end, boundary):
    assert CHOICE.rolling(14_000, end, 14_000) == boundary


def test_spare_tails_are_ranked_by_how_round_their_boundary_is():
    spares = {b: r for r, b in CHOICE.spare(0, 16_384, 100_000, {512})}
    assert spares[1024] == 0 and spares[2048] == 1 and spares[8192] == 2
    assert 512 not in spares and 640 not in spares
    assert len(spares) == 31


def test_the_first_of_them_is_shortly_before_the_prompt_s_end():
    spares = CHOICE.spare(8192, 14_000, 14_000, {13_952})
    assert spares[0] == (KEPT - 1, 13_824)
