# SPDX-License-Identifier: Apache-2.0
"""What a prompt singles out, by the rules of the cache and of the tier alike."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_ascend.core.policy.prompt_boundaries import BoundaryRules

UNIT = 128


def test_without_a_fallback_boundary_nothing_is_marginal():
    rules = BoundaryRules(UNIT, least_gain=1061, keeps_fallback=False)
    prompt = rules.of_prompt(14_000, junction=9088)
    assert (prompt.ends, prompt.kept) == ({13_952}, {13_952, 9088})
    assert not prompt.marginal


def test_the_interval_keeps_an_end_that_is_not_worth_a_tail():
    rules = BoundaryRules(UNIT, least_gain=1061, interval=8 * UNIT)
    prompt = rules.of_prompt(24 * UNIT + 1, junction=0)
    assert prompt.ends - prompt.kept == {24 * UNIT}
    assert not prompt.marginal
    assert rules.kept(23 * UNIT, 24 * UNIT, prompt.kept) == [24 * UNIT]


@given(
    st.integers(0, 100_000),
    st.integers(0, 700),
    st.sampled_from([0, UNIT]),
    st.integers(0, 4096),
    st.sampled_from([None, 0, UNIT, 16 * UNIT]),
    st.booleans(),
)
def test_every_boundary_is_kept_marginal_or_one_of_the_interval(
    num_tokens, junction, lookahead, least_gain, interval, keeps_fallback
):
    rules = BoundaryRules(UNIT, lookahead, least_gain, interval, keeps_fallback)
    prompt = rules.of_prompt(num_tokens, junction * UNIT)
    kept = set(rules.kept(0, 200_000, prompt.kept))
    assert prompt.singled_out - {0} == (prompt.singled_out & kept) | prompt.marginal
    assert prompt.marginal.isdisjoint(kept)
    assert prompt.singled_out == prompt.ends | {junction * UNIT}
    assert all(b + max(lookahead, 1) <= num_tokens for b in prompt.ends if b)
    assert rules.of_prompt(*prompt[:2]) == prompt
