# SPDX-License-Identifier: Apache-2.0
"""Run over a plain checkout on the CPU: its hybrid Mooncake connector is right with drafts.

Of those behind the one that check_plain_faults_of_mooncake.py is about.
"""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.check_whole_runs_of_mooncake import (
    decode,
    pair,
    pass_over_drafts,
    prefill,
)
from tests.upstream.npu_reference.engine import answered


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_blocks_of_the_prompt_are_pulled(tmp_path, num_drafts):
    prompts, expected = map(list, zip(*answered(), strict=True))
    sides = {"num_drafts": num_drafts, "rows": 128}
    with pair(tmp_path, sides, sides) as (producer, consumer):
        consumer.call(pass_over_drafts)
        said = decode(consumer, prompts, prefill(producer, prompts))
        assert [answer.tokens for answer in said] == expected
