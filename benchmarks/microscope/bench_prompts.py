# SPDX-License-Identifier: Apache-2.0
"""What one prompt costs: adding it, looking it up, its blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import pytest
from vllm.v1.request import RequestStatus

from benchmarks.microscope.cases import PROMPT_TOKENS, size
from benchmarks.microscope.sides import Side
from benchmarks.microscope.workbench import Passage, build, random_prompt
from vllm_ascend.dry_run.scheduler import make_request

prompts = pytest.mark.parametrize("num_tokens", PROMPT_TOKENS, ids=size)


def num_repeats(num_tokens: int) -> int:
    """Return how many prompts of a length one process takes."""
    return max(1, min(5, (1 << 18) // num_tokens))


@prompts
def bench_add_request(benchmark, side: Side, num_tokens: int) -> None:
    scheduler = build(side)
    prompt = random_prompt(num_tokens, seed=0)

    def add_request() -> None:
        scheduler.add_request(make_request(scheduler, "r", prompt, 1))

    def forget() -> None:
        scheduler.finish_requests([*scheduler.requests], RequestStatus.FINISHED_ABORTED)

    repeats = num_repeats(num_tokens)
    benchmark.pedantic(add_request, setup=forget, rounds=repeats, warmup_rounds=repeats // 5)


@pytest.fixture(scope="module")
def served(side: Side) -> Callable[[int], Passage]:
    """Tokens -> a passage whose prompt has been served, and freed."""

    @lru_cache(maxsize=1)
    def serve(num_tokens: int) -> Passage:
        passage = Passage(side, num_tokens)
        passage.serve()
        passage.free()
        return passage

    return serve


def look_up(benchmark, passage: Passage, prompt: list[int]) -> None:
    """Measure the look-up of a prompt in the cache that a passage has left."""
    request = passage.new_request(prompt)
    _, num_hit_tokens = passage.manager.get_computed_blocks(request)
    benchmark.extra_info["hit_tokens"] = num_hit_tokens
    benchmark.pedantic(
        passage.manager.get_computed_blocks, (request,), rounds=9, iterations=5, warmup_rounds=2
    )


@prompts
def bench_look_up_miss(benchmark, served: Callable[[int], Passage], num_tokens: int) -> None:
    look_up(benchmark, served(num_tokens), random_prompt(num_tokens, seed=1))


@prompts
def bench_look_up_full(benchmark, served: Callable[[int], Passage], num_tokens: int) -> None:
    passage = served(num_tokens)
    look_up(benchmark, passage, passage.prompt)


@prompts
def bench_look_up_middle(benchmark, served: Callable[[int], Passage], num_tokens: int) -> None:
    passage = served(num_tokens)
    half = num_tokens // 2
    look_up(benchmark, passage, passage.prompt[:half] + random_prompt(half, seed=1))


def chunk_by_chunk(
    benchmark,
    passage: Passage,
    target: Callable[[], None],
    setup: Callable[[], None],
    teardown: Callable[[], None],
) -> None:
    """Measure every chunk by itself; what a prompt costs is the sum over its chunks."""
    benchmark.extra_info["calls"] = passage.num_chunks
    repeats = num_repeats(passage.request.num_tokens)
    benchmark.pedantic(
        target,
        setup=setup,
        teardown=teardown,
        rounds=repeats * passage.num_chunks,
        warmup_rounds=repeats // 5 * passage.num_chunks,
    )


@prompts
def bench_allocate(benchmark, side: Side, num_tokens: int) -> None:
    passage = Passage(side, num_tokens)

    def teardown() -> None:
        passage.cache()
        passage.advance()

    chunk_by_chunk(benchmark, passage, passage.allocate, lambda: None, teardown)


@prompts
def bench_cache(benchmark, side: Side, num_tokens: int) -> None:
    passage = Passage(side, num_tokens)
    chunk_by_chunk(benchmark, passage, passage.cache, passage.allocate, passage.advance)


@prompts
def bench_free(benchmark, side: Side, num_tokens: int) -> None:
    passage = Passage(side, num_tokens)

    def setup() -> None:
        passage.begin()
        passage.serve()
        benchmark.extra_info["key_bytes"] = passage.key_bytes()

    repeats = num_repeats(num_tokens)
    benchmark.pedantic(passage.free, setup=setup, rounds=repeats, warmup_rounds=repeats // 5)
