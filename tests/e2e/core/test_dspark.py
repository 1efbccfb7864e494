# SPDX-License-Identifier: Apache-2.0
"""DSpark drafts: a hit loses nothing for them, on every block size.

Rows, windows and what drafts scribble are checked by the content oracle, here and under random
traffic (test_workloads.py); what is planted is in test_planted_bugs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.e2e.core.configurations import DSV4, PROFILE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.test_cases import BLOCK_SIZES, GRANULE, Server, prompt
from tests.release_marks import WHERE_VLLM_DROPS_A_BLOCK_FOR_DSPARK, WHERE_VLLM_HAS_DSPARK
from vllm_ascend.core.checks import drafts
from vllm_ascend.core.checks.drafts import DSPARK
from vllm_ascend.dry_run import scheduler as dry_run

pytestmark = WHERE_VLLM_HAS_DSPARK

BEST = {PROFILE: "best"}
# vllm-ascend alone: it drops the last block of a hit, and hits end where all blocks end.
UPSTREAM_LIKE = {DSV4: "1"}


@pytest.fixture
def serve(make_engine: MakeEngine) -> Callable[..., Server]:
    """Return what starts DeepSeek-V4-Flash-0731's layout on A3, drafting with DSpark."""

    def start(
        switches: Mapping[str, str] = BEST, block_size: int = 128, num_drafts: int = 7
    ) -> Server:
        return Server(make_engine, switches, block_size, num_drafts=num_drafts, draft_method=DSPARK)

    return start


@BLOCK_SIZES
@pytest.mark.parametrize("num_drafts", [1, 3, 7])
def test_the_smallest_prefix_that_hits_is_a_granule(serve, block_size, num_drafts):
    server = serve(BEST, block_size, num_drafts)
    for shared, expected in ((GRANULE - 1, 0), (GRANULE, GRANULE)):
        common = prompt(shared, shared)
        server.hit(common + prompt(5, 500), max_tokens=20)
        assert server.hit(common + prompt(6, 500)) == expected, shared


@BLOCK_SIZES
def test_a_prompt_that_comes_again_hits_all_but_its_end(serve, block_size):
    """As without drafts; vllm-ascend 16270: prompts below 4,096 tokens, 0 %."""
    server = serve(BEST, block_size)
    for length in (129, 257, 2048, 4095):
        tokens = prompt(length, length)
        assert [server.hit(tokens) for _ in range(2)] == [0, (length - 1) // GRANULE * GRANULE]


@WHERE_VLLM_DROPS_A_BLOCK_FOR_DSPARK
@pytest.mark.parametrize(("block_size", "whole_block_tokens"), [(32, 4096), (128, 16_384)])
def test_as_upstream_a_hit_ends_where_all_blocks_end_and_needs_one_more(
    serve, block_size, whole_block_tokens
):
    server = serve(UPSTREAM_LIKE, block_size)
    # Later releases take a block that ends with the prompt for the one more.
    last = block_size - 1
    for length, expected in (
        (whole_block_tokens + last, 0),
        (whole_block_tokens + 600, whole_block_tokens),
    ):
        tokens = prompt(length, length)
        server.hit(tokens, max_tokens=20)
        assert server.hit(tokens) == expected


@WHERE_VLLM_DROPS_A_BLOCK_FOR_DSPARK
def test_where_the_drop_is_left_on_a_granule_is_lost(serve, monkeypatch):
    """Planted: the test of the smallest prefix fails if the drop is on."""
    for module in (drafts, dry_run):
        monkeypatch.setattr(module, "keep_last_block", lambda *args: None)
    server = serve()
    common = prompt(1, GRANULE)
    server.hit(common + prompt(5, 500), max_tokens=20)
    assert server.hit(common + prompt(6, 500)) < GRANULE


def test_the_last_token_of_an_answer_is_not_entered(serve):
    """Only drafts have written where its row would be."""
    server = serve()
    tokens = prompt(1, GRANULE - 28)
    server.hit(tokens, max_tokens=28)
    assert server.hit(server.last_answer + prompt(2, 200)) == 0
