# SPDX-License-Identifier: Apache-2.0
"""Prompts of shots: known to the server for as long as the shot says, and no longer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.server_access.vocabulary import FIRST_ID
from vllm_ascend_evaluation.calibrate.measuring import prompts_of
from vllm_ascend_evaluation.calibrate.shots import Shot


@given(st.integers(0, 99), st.integers(2, 5), st.integers(0, 1 << 32))
def test_what_is_known_ends_where_the_shot_says_so(known_tokens, num_ids, seed):
    """However few ids there are to draw from: a block more would count as a false hit."""
    tokens = np.random.default_rng(seed)
    before = tokens.integers(FIRST_ID, FIRST_ID + num_ids, 100).tolist()
    shot = Shot(100, known_tokens=known_tokens)
    (prompt,) = prompts_of(shot, 1, before, FIRST_ID + num_ids, tokens)
    assert len(prompt) == 100 and all(0 <= id - FIRST_ID < num_ids for id in prompt)
    if known_tokens:
        assert prompt[:known_tokens] == before[:known_tokens]
        assert prompt[known_tokens] != before[known_tokens]


def test_prompts_of_several_requests_are_all_new():
    tokens = np.random.default_rng(0)
    prompts = prompts_of(Shot(50, 3, 9), 3, list(range(50)), 1024, tokens)
    assert [len(prompt) for prompt in prompts] == [50] * 3
    assert len(set(map(tuple, prompts))) == 3
