# SPDX-License-Identifier: Apache-2.0
"""Run over a plain checkout on the CPU: what its hybrid Mooncake connector does with drafts."""

from __future__ import annotations

import pytest

from tests.upstream.npu_reference.check_whole_runs_of_mooncake import (
    decode,
    pair,
    pass_over_drafts,
    prefill,
)
from tests.upstream.npu_reference.engine import answered
from tests.upstream.npu_reference.tags import TagError


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_with_drafts_blocks_of_other_tokens_are_pulled(tmp_path, num_drafts):
    """Windows' blocks are counted from the end of a table that goes on behind the prompt."""
    prompts, expected = map(list, zip(*answered(), strict=True))
    sides = {"num_drafts": num_drafts, "rows": 128}
    with pair(tmp_path, sides, sides) as (producer, consumer):
        consumer.call(pass_over_drafts)
        prefilled = prefill(producer, prompts)
        if num_drafts:
            with pytest.raises(TagError, match=r"read .*self_attn\.swa_cache"):
                decode(consumer, prompts, prefilled)
        else:
            said = decode(consumer, prompts, prefilled)
            assert [answer.tokens for answer in said] == expected
