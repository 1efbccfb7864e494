# SPDX-License-Identifier: Apache-2.0
"""Named workloads: generated ones, and the shipped excerpt of a real trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from vllm_ascend.replay.readers.mooncake import mooncake_workload
from vllm_ascend.replay.trace import BadInputError, TraceRequest, Workload

SHIPPED_TRACE = Path(__file__).parent / "data" / "mooncake_conversation_1000.jsonl.gz"
_VOCABULARY = 100_000


def shared_prefix(
    name: str,
    *,
    num_requests: int,
    input_tokens: int,
    shared_tokens: int,
    output_tokens: int,
    concurrency: int,
    seed: int,
) -> Workload:
    """Prompts that begin alike and go on each in its own way.

    Raises:
        BadInputError: A number is out of range.
    """
    if num_requests < 1 or input_tokens < 1 or output_tokens < 1:
        raise BadInputError(f"{name}: requests, input and output tokens must be at least 1")
    if shared_tokens > input_tokens:
        raise BadInputError(
            f"{name}: {shared_tokens} shared tokens are more than the {input_tokens} of a prompt"
        )

    def requests() -> Iterator[TraceRequest]:
        rng = np.random.default_rng(seed)
        shared = _tokens(rng, shared_tokens)
        for _ in range(num_requests):
            own = _tokens(rng, input_tokens - shared_tokens)
            yield TraceRequest(shared + own, output_tokens)

    return Workload(
        name=name,
        description=f"{num_requests} prompts of {input_tokens:,} tokens, the first "
        f"{shared_tokens:,} shared, {output_tokens:,} out, {concurrency} at a time",
        concurrency=concurrency,
        num_requests=num_requests,
        requests=requests,
    )


def _tokens(rng: np.random.Generator, num_tokens: int) -> list[int]:
    return rng.integers(0, _VOCABULARY, num_tokens).tolist()


def _w1(seed: int) -> Workload:
    return shared_prefix(
        "W1",
        num_requests=320,
        input_tokens=8192,
        shared_tokens=7372,
        output_tokens=1024,
        concurrency=32,
        seed=seed,
    )


def _w2(seed: int) -> Workload:
    return shared_prefix(
        "W2",
        num_requests=10,
        input_tokens=14_000,
        shared_tokens=14_000,
        output_tokens=1,
        concurrency=1,
        seed=seed,
    )


def _w3(seed: int) -> Workload:
    return shared_prefix(
        "W3",
        num_requests=2,
        input_tokens=64_530,
        shared_tokens=32_274,
        output_tokens=1,
        concurrency=1,
        seed=seed,
    )


def _w4(seed: int) -> Workload:
    return mooncake_workload(SHIPPED_TRACE, name="W4", max_output_tokens=64, concurrency=32)


def _replayed(name: str, seed: int, percent: Callable[[int], int]) -> Workload:
    """14 prompts of 128,000 tokens, one after another; then a part of each again."""
    num_prompts, input_tokens = 14, 128_000

    def prompt(number: int) -> list[int]:
        return _tokens(np.random.default_rng((seed, number)), input_tokens)

    def requests() -> Iterator[TraceRequest]:
        for number in range(num_prompts):
            yield TraceRequest(prompt(number), 1)
        for number in range(num_prompts):
            yield TraceRequest(prompt(number)[: input_tokens * percent(number) // 100], 1)

    return Workload(
        name=name,
        description=f"{num_prompts} prompts of {input_tokens:,} tokens one after another, then "
        f"{percent(0)} to {max(map(percent, range(num_prompts)))} % of each again",
        concurrency=1,
        num_requests=2 * num_prompts,
        requests=requests,
    )


_BUILDERS: dict[str, Callable[[int], Workload]] = {
    "W1": _w1,
    "W2": _w2,
    "W3": _w3,
    "W4": _w4,
    "W5": lambda seed: _replayed("W5", seed, lambda number: (number % 10 + 1) * 10),
    "W5f": lambda seed: _replayed("W5f", seed, lambda number: 100),
}
WORKLOAD_NAMES = tuple(_BUILDERS)


def named_workload(name: str, *, seed: int = 0) -> Workload:
    """Return a named workload; the same seed gives the same prompts.

    Raises:
        KeyError: There is none of that name.
    """
    return _BUILDERS[name](seed)
