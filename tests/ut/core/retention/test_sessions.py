# SPDX-License-Identifier: Apache-2.0
"""Where a session goes on when it gets more input."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vllm_ascend.core.retention.sessions import rewind


def session(num_tokens: int, num_computed: int, *, has_items: bool = False) -> Any:
    """Return a session whose tokens have all been hashed, 16 at a time."""
    return SimpleNamespace(
        num_tokens=num_tokens,
        num_computed_tokens=num_computed,
        num_preemptions=1,
        mm_features=["image"] if has_items else [],
        block_hashes=[*range(num_tokens // 16)],
    )


@pytest.mark.parametrize(
    ("num_tokens", "num_computed", "num_kept", "num_hashes"),
    [
        (49, 48, 48, 3),  # the token sampled last is dropped
        (48, 47, 47, 2),  # and the hash that covers it
        (48, 52, 48, 3),  # drafts are no tokens of the session
        (48, 0, 47, 2),  # its blocks were lost: it is not to lose its history
    ],
)
def test_it_keeps_what_it_has_computed(num_tokens, num_computed, num_kept, num_hashes):
    request = session(num_tokens, num_computed)
    assert rewind(request, 16, has_new_items=False) == num_kept == request.num_computed_tokens
    assert request.block_hashes == [*range(num_hashes)]
    assert request.num_preemptions == 0


@pytest.mark.parametrize(("has_items", "has_new_items"), [(True, False), (False, True)])
def test_a_prompt_with_items_is_hashed_again(has_items, has_new_items):
    request = session(49, 48, has_items=has_items)
    assert rewind(request, 16, has_new_items=has_new_items) == 48
    assert request.block_hashes == []
