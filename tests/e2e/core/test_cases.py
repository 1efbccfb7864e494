# SPDX-License-Identifier: Apache-2.0
"""What users of DeepSeek-V4 on Ascend complained about, each as it must come out.

Expectations are arithmetic on prompt lengths; the oracle checks every row that is read.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from tests.e2e.core import layouts
from tests.e2e.core.configurations import DSV4, PARTIAL, RETENTION, SPARE
from tests.e2e.core.conftest import MakeEngine
from tests.e2e.core.engine import Engine
from vllm_ascend.core.checks import startup_report
from vllm_ascend.dry_run.layouts import DRAFT_LAYERS, dsv4_flash_a3
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler
from vllm_ascend_evaluation.oracle import OracleOptions

GRANULE = 128
BEST = {DSV4: "1", "VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"}
AUTO = {DSV4: "1", PARTIAL: "1", RETENTION: "auto"}
ZERO = {DSV4: "1", PARTIAL: "1", RETENTION: "0"}
SWITCHES = pytest.mark.parametrize(
    "switches", [AUTO, ZERO, BEST], ids=["auto", "interval-0", "best"]
)
BLOCK_SIZES = pytest.mark.parametrize("block_size", [32, 64, 128])
# A group's block table does not depend on how many layers it has.
FEW_LAYERS = (0, 0, 4, 128, 4)


def prompt(seed: int, num_tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(100_000) for _ in range(num_tokens)]


class Server:
    """DeepSeek-V4-Flash's layout on A3 behind the real scheduler."""

    def __init__(
        self,
        make_engine: MakeEngine,
        switches: Mapping[str, str],
        block_size: int = 128,
        *,
        num_drafts: int = 0,
        draft_method: str = "mtp",
        max_num_seqs: int = 1,
        num_blocks: int = 60_000,
        max_model_len: int = 140_000,
    ) -> None:
        options = SchedulerOptions(
            num_blocks=num_blocks,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            num_speculative_tokens=num_drafts,
            draft_method=draft_method,
        )
        num_draft_layers = DRAFT_LAYERS[draft_method]
        self.engine: Engine = make_engine(
            lambda: dsv4_flash_a3(
                block_size, num_draft_layers=num_draft_layers, compress_ratios=FEW_LAYERS
            ),
            options,
            OracleOptions(),
            environment=switches,
        )
        self._count = 0
        self.last_answer: list[int] = []

    def hit(self, tokens: list[int], max_tokens: int = 2) -> int:
        """Serve a prompt alone; return its hit in tokens."""
        self._count += 1
        name = f"r{self._count}"
        self.engine.add(name, tokens, max_tokens)
        self.engine.run()
        self.engine.check()
        self.last_answer = [*tokens, *self.engine.outputs[name]]
        return self.engine.hits[name]


def floor(num_tokens: int) -> int:
    return num_tokens // GRANULE * GRANULE


def test_the_few_layers_stand_for_the_model(switch) -> None:
    switch({DSV4: "1"})

    def kinds(**kwargs) -> set:
        scheduler = build_scheduler(dsv4_flash_a3(**kwargs), SchedulerOptions(num_blocks=9000))
        specs = [g.kv_cache_spec for g in scheduler.kv_cache_config.kv_cache_groups]
        return {
            (spec.block_size, getattr(spec, "sliding_window", None), spec.dtype) for spec in specs
        }

    assert kinds(compress_ratios=FEW_LAYERS) == kinds()


@SWITCHES
def test_u1_an_identical_prompt_ten_times(switches, make_engine: MakeEngine) -> None:
    """vllm-ascend 10710: 14,000 tokens, block size 128, always 0 %."""
    server = Server(make_engine, switches)
    tokens = prompt(1, 14_000)
    assert [server.hit(tokens) for _ in range(10)] == [0] + [13_952] * 9
    server.engine.drain()


@BLOCK_SIZES
@SWITCHES
def test_u2_two_prompts_that_share_half(switches, block_size: int, make_engine: MakeEngine) -> None:
    """vllm-ascend 9326: 64,530 tokens, exactly 32,274 shared, 0 %."""
    server = Server(make_engine, switches, block_size)
    shared = prompt(1, 32_274)
    hits = [server.hit(shared + prompt(seed, 64_530 - 32_274)) for seed in (2, 3, 4)]
    assert hits == [0, 32_256 if switches is BEST else 0, 32_256]


def test_u2_a_positive_interval_serves_the_second_prompt(make_engine: MakeEngine) -> None:
    """The last multiple of the interval below 32,274."""
    server = Server(make_engine, {**ZERO, RETENTION: "4096"})
    shared = prompt(1, 32_274)
    hits = [server.hit(shared + prompt(seed, 64_530 - 32_274)) for seed in (2, 3, 4)]
    assert hits == [0, 32_274 // 4096 * 4096, 32_256]


@SWITCHES
def test_u3_half_of_128k_is_shared(switches, make_engine: MakeEngine) -> None:
    """vllm-ascend 12589: about 0 %."""
    server = Server(make_engine, switches)
    shared = prompt(1, 65_000)
    hits = [server.hit(shared + prompt(seed, 128_000 - 65_000)) for seed in (2, 3, 4)]
    second = {id(BEST): floor(65_000), id(AUTO): 32_768, id(ZERO): 0}[id(switches)]
    assert hits == [0, second, floor(65_000)]


@BLOCK_SIZES
@SWITCHES
def test_u4_prompts_shorter_than_the_old_alignment(
    switches, block_size: int, make_engine: MakeEngine
) -> None:
    """vllm-ascend 16270: identical prompts below 4,096 tokens, block size 32, 0 %."""
    server = Server(make_engine, switches, block_size)
    for length in (127, 128, 129, 257, 1000, 4095):
        tokens = prompt(length, length)
        assert [server.hit(tokens) for _ in range(3)] == [0, *[floor(length - 1)] * 2], length


@BLOCK_SIZES
@pytest.mark.parametrize("num_drafts", [0, 1], ids=["plain", "mtp"])
def test_u5_the_smallest_prefix_that_hits(
    num_drafts: int, block_size: int, make_engine: MakeEngine
) -> None:
    """vllm-ascend 10683: 4K to 32K. Now a granule, and with a draft layer two."""
    server = Server(make_engine, BEST, block_size, num_drafts=num_drafts)
    smallest = GRANULE * (1 + num_drafts)
    for shared, expected in ((smallest - 1, 0), (smallest, GRANULE)):
        common = prompt(shared, shared)
        server.hit(common + prompt(5, 500))
        assert server.hit(common + prompt(6, 500)) == expected, shared


def test_u6_a_million_tokens(make_engine: MakeEngine) -> None:
    """vllm-ascend 16156: 1,024,000 tokens, 99 % shared with a warmed prefix, MTP 1, about 60 %."""
    server = Server(make_engine, BEST, num_drafts=1, max_model_len=1_048_576)
    warmed = prompt(1, 1_024_000 * 99 // 100)
    server.hit(warmed, max_tokens=1)
    hit = server.hit(warmed + prompt(2, 1_024_000 - len(warmed)), max_tokens=2)
    assert hit / 1_024_000 >= 0.989
    assert len(warmed) - 2 * GRANULE < hit <= len(warmed)


@BLOCK_SIZES
@SWITCHES
def test_u7_drafts_cost_one_granule(switches, block_size: int, make_engine: MakeEngine) -> None:
    """vllm 43447: 0 % with MTP."""
    server = Server(make_engine, switches, block_size, num_drafts=1)
    for length in (400, 14_000):
        tokens = prompt(length, length)
        hits = [server.hit(tokens) for _ in range(3)]
        assert hits == [0, *[floor(length - GRANULE)] * 2]
        assert floor(length - 1) - hits[-1] in (0, GRANULE)


@SWITCHES
def test_u8_many_users_share_a_prompt(switches, make_engine: MakeEngine) -> None:
    """vllm-ascend 10193: 8,192 in, 7,372 shared, 32 at a time, 16 GiB; 0 %, later 81.54 %.

    A step computes 8,192 tokens, so the first prompt is whole before the second is looked up. Only
    the first pays; without spare tails also the second, which finds rows but no tail.
    """
    server = Server(make_engine, switches, max_num_seqs=32, num_blocks=5_106)
    shared = prompt(1, 7_372)
    names = [f"u{i}" for i in range(96)]
    for i, name in enumerate(names):
        server.engine.add(name, shared + prompt(i + 2, 8_192 - 7_372), 64)
    server.engine.run()
    num_paying = 1 if switches is BEST else 2
    hits = [server.engine.hits[name] for name in names]
    assert hits == [0] * num_paying + [floor(7_372)] * (96 - num_paying)
    server.engine.drain()


@SWITCHES
def test_u9_a_prefix_resent_with_fresh_tails(switches, make_engine: MakeEngine) -> None:
    """vllm 42948: hits that are all or nothing, and fall with the length of the tail."""
    server = Server(make_engine, switches)
    prefix = prompt(1, 12_000)
    turns = [0, 7_000, 14_000, 28_000, 7_000]
    hits = [server.hit(prefix + prompt(turn + 10, tail)) for turn, tail in enumerate(turns)]
    # The prefix alone ended at its replay boundary, which is kept.
    assert hits == [0] + [floor(12_000 - 1)] * 4
    server.engine.reset()
    turns = [28_000, 7_000, 14_000, 28_000]
    hits = [server.hit(prefix + prompt(turn + 20, tail)) for turn, tail in enumerate(turns)]
    assert hits == [0, floor(12_000) if switches is BEST else 0, *[floor(12_000)] * 2]


@pytest.mark.parametrize("spare", [False, True], ids=["without spare tails", "with spare tails"])
def test_u13_reuse_starts_at_the_second_request(spare: bool, make_engine: MakeEngine) -> None:
    """vllm 53595: a hybrid with retention 0 first reused a prompt at request 3."""
    environment = {RETENTION: "0", **({SPARE: "1"} if spare else {})}
    engine = make_engine(
        lambda: layouts.gemma_like(16, 64),
        SchedulerOptions(num_blocks=4000, max_num_seqs=1, max_model_len=9000),
        environment=environment,
    )
    shared = prompt(1, 3000)
    hits = []
    for number in range(3):
        engine.add(f"r{number}", shared + prompt(number + 2, 500), 2)
        engine.run()
        hits.append(engine.hits[f"r{number}"])
    reused = 3000 // 16 * 16
    assert hits == [0, reused if spare else 0, reused]
    # What retention did not keep is told at the start, and counted.
    told = startup_report.summary(engine.manager.coordinator.plan, 1000)
    assert ("the third one hits, not the second" in told) == (not spare)
    assert engine.manager.coordinator.stats.junction_misses == (0 if spare else 1)
    engine.drain()


@pytest.mark.parametrize(
    ("switches", "most"), [(ZERO, 1_424), (BEST, 230)], ids=["dense", "sparse"]
)
def test_a_chunk_of_8192_tokens_takes_few_blocks(
    switches, most: int, make_engine: MakeEngine
) -> None:
    """About 150 for rows and windows; with spare tails one of C4 state for each of 64 boundaries.

    Stock: 16 C4, 1 C128, 2 x 64 windows, 1,024 C4 states and 256 C128 states.
    """
    server = Server(make_engine, {**switches})
    server.engine.add("long", prompt(1, 8_192), 1)
    server.engine.step()
    pool = server.engine.manager.block_pool
    used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    assert used <= most
    if switches is BEST:
        lean = Server(make_engine, {**BEST, SPARE: "0"})
        lean.engine.add("long", prompt(1, 8_192), 1)
        lean.engine.step()
        pool = lean.engine.manager.block_pool
        assert pool.num_gpu_blocks - 1 - pool.get_num_free_blocks() <= 155
