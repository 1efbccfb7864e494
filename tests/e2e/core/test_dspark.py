# SPDX-License-Identifier: Apache-2.0
"""DSpark drafts: a hit loses nothing for them, on every block size.

Rows, windows and what drafts scribble are checked by the content oracle, here and under random
traffic (test_workloads.py); what is planted is in test_planted_bugs.py.
"""

from __future__ import annotations

import random

import pytest

from tests.e2e.core.configurations import DSV4, PROFILE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from tests.release_marks import WHERE_VLLM_HAS_DSPARK
from vllm_ascend.core.checks import drafts
from vllm_ascend.core.checks.drafts import DSPARK
from vllm_ascend.dry_run import scheduler as dry_run
from vllm_ascend.dry_run.layouts import DRAFT_LAYERS, dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions

pytestmark = WHERE_VLLM_HAS_DSPARK

GRANULE = 128
BEST = {PROFILE: "best"}
# vllm-ascend alone: it drops the last block of a hit, and hits end where all blocks end.
UPSTREAM_LIKE = {DSV4: "1"}
FEW_LAYERS = (0, 0, 4, 128, 4)
BLOCK_SIZES = pytest.mark.parametrize("block_size", [32, 64, 128])


def prompt(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100_000) for _ in range(num_tokens)]


class Server:
    """DeepSeek-V4-Flash-0731's layout on A3, drafting with DSpark."""

    def __init__(
        self,
        make_engine: MakeEngine,
        environment: dict[str, str],
        block_size: int,
        num_drafts: int = 7,
    ) -> None:
        options = SchedulerOptions(
            num_blocks=60_000,
            max_num_seqs=1,
            num_speculative_tokens=num_drafts,
            draft_method=DSPARK,
        )
        self._engine: Engine = make_engine(
            lambda: dsv4_flash_a3(
                block_size, num_draft_layers=DRAFT_LAYERS[DSPARK], compress_ratios=FEW_LAYERS
            ),
            options,
            environment=environment,
        )
        self._count = 0
        self.last_answer: list[int] = []

    def hit(self, tokens: list[int], max_tokens: int = 20) -> int:
        """Serve a prompt alone; return its hit in tokens."""
        self._count += 1
        name = f"r{self._count}"
        self._engine.add(name, tokens, max_tokens)
        self._engine.run()
        self._engine.check()
        self.last_answer = [*tokens, *self._engine.outputs[name]]
        return self._engine.hits[name]


@BLOCK_SIZES
@pytest.mark.parametrize("num_drafts", [1, 3, 7])
def test_the_smallest_prefix_that_hits_is_a_granule(make_engine, block_size, num_drafts):
    server = Server(make_engine, BEST, block_size, num_drafts)
    for shared, expected in ((GRANULE - 1, 0), (GRANULE, GRANULE)):
        common = prompt(shared, shared)
        server.hit(common + prompt(5, 500))
        assert server.hit(common + prompt(6, 500)) == expected, shared


@BLOCK_SIZES
def test_a_prompt_that_comes_again_hits_all_but_its_end(make_engine, block_size):
    """As without drafts; vllm-ascend 16270: prompts below 4,096 tokens, 0 %."""
    server = Server(make_engine, BEST, block_size)
    for length in (129, 257, 2048, 4095):
        tokens = prompt(length, length)
        assert [server.hit(tokens) for _ in range(2)] == [0, (length - 1) // GRANULE * GRANULE]


@pytest.mark.parametrize(("block_size", "whole_blocks"), [(32, 4096), (128, 16_384)])
def test_as_upstream_a_hit_ends_where_all_blocks_end_and_needs_one_more(
    make_engine, block_size, whole_blocks
):
    server = Server(make_engine, UPSTREAM_LIKE, block_size)
    for length, expected in ((whole_blocks + block_size, 0), (whole_blocks + 600, whole_blocks)):
        tokens = prompt(length, length)
        server.hit(tokens)
        assert server.hit(tokens) == expected


def test_where_the_drop_is_left_on_a_granule_is_lost(make_engine, monkeypatch):
    """Planted: the test of the smallest prefix fails if the drop is on."""
    for module in (drafts, dry_run):
        monkeypatch.setattr(module, "keep_last_block", lambda *args: None)
    server = Server(make_engine, BEST, 128)
    common = prompt(1, GRANULE)
    server.hit(common + prompt(5, 500))
    assert server.hit(common + prompt(6, 500)) < GRANULE


def test_the_last_token_of_an_answer_is_not_entered(make_engine):
    """Only drafts have written where its row would be."""
    server = Server(make_engine, BEST, 128)
    tokens = prompt(1, GRANULE - 28)
    server.hit(tokens, max_tokens=28)
    assert server.hit(server.last_answer + prompt(2, 200)) == 0
