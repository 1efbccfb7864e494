# SPDX-License-Identifier: Apache-2.0
"""Run over a plain checkout on the CPU: what is wrong in it, and what is not."""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.check_whole_runs_of_schedulers import SCHEDULERS
from tests.upstream.npu_reference.engine import Engine, answered, tokens_of
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.npu_reference.tags import TagError


def test_tokens_are_those_of_hugging_face():
    engine = Engine()
    prompts, expected = zip(*answered(), strict=True)
    assert tokens_of(engine.answer(prompts)) == list(expected)


@pytest.mark.parametrize("scheduler", differences_here().gives_drafts_no_blocks)
def test_drafts_behind_the_first_write_into_foreign_blocks(scheduler):
    """A request's first step has no blocks for drafts; its row of the table has those of others."""
    engine = Engine(num_drafts=3, **SCHEDULERS[scheduler])
    prompts = [prompt for prompt, _ in answered()]
    with pytest.raises(TagError, match=r"foreign block \[mtp\.0"):
        for _ in range(3):
            engine.answer(prompts)
