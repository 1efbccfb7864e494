# SPDX-License-Identifier: Apache-2.0
"""The fake model accepts exactly the drafts that it would have sampled itself."""

from __future__ import annotations

import pytest

from vllm_ascend_evaluation.oracle.digests import PrefixDigests
from vllm_ascend_evaluation.oracle.drafting import FakeModel


def make_model(acceptance: float) -> FakeModel:
    return FakeModel(vocabulary=50, acceptance=acceptance, seed=1, continuation=lambda _: 0)


def continuation(count: int) -> list[int]:
    """What the model says behind [1, 2, 3], one token at a time."""
    digests = PrefixDigests(None, [1, 2, 3])
    model = make_model(1.0)
    return [model.verify("r", digests, [])[0] for _ in range(count)]


def test_without_drafts_one_token_is_sampled() -> None:
    digests = PrefixDigests(None, [1, 2, 3])
    assert make_model(1.0).verify("r", digests, []) == continuation(1)
    assert digests.tokens == [1, 2, 3, *continuation(1)]


@pytest.mark.parametrize("right", range(4))
def test_drafts_are_accepted_up_to_the_first_wrong_one(right: int) -> None:
    expected = continuation(4)
    drafts = [token if i < right else 51 for i, token in enumerate(expected[:3])]
    digests = PrefixDigests(None, [1, 2, 3])
    assert make_model(1.0).verify("r", digests, drafts) == expected[: right + 1]


def test_proposals_do_not_become_tokens() -> None:
    digests = PrefixDigests(None, [1, 2, 3])
    assert make_model(1.0).propose("r", digests, 3) == continuation(3)
    assert digests.tokens == [1, 2, 3]


def test_the_acceptance_rate_is_what_was_asked_for() -> None:
    model = make_model(0.5)
    digests = PrefixDigests(None, [1, 2, 3])
    first = continuation(1)[0]
    right = sum(model.propose("r", digests, 2)[0] == first for _ in range(400))
    assert 150 < right < 250
