# SPDX-License-Identifier: Apache-2.0
"""Generated workloads: fixed shapes, and models of real traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend_evaluation.replay.generators.agentic import agentic
from vllm_ascend_evaluation.replay.generators.chat import chat
from vllm_ascend_evaluation.replay.generators.mix import mix
from vllm_ascend_evaluation.replay.generators.sessions import Draft
from vllm_ascend_evaluation.replay.trace import TraceRequest, Workload

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
    _require(name, 1, requests=num_requests, concurrency=concurrency)
    _require(name, 1, input_tokens=input_tokens, output_tokens=output_tokens)
    _require(name, 0, shared_tokens=shared_tokens, seed=seed)
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
        f"{shared_tokens:,} shared, {output_tokens:,} out",
        concurrency=concurrency,
        num_requests=num_requests,
        requests=requests,
    )


def round_robin(
    name: str,
    *,
    num_prefixes: int,
    num_rounds: int,
    shared_tokens: int,
    own_tokens: int,
    output_tokens: int,
    concurrency: int,
    seed: int,
) -> Workload:
    """Several long prefixes, asked for in turn; every prompt goes on in its own way.

    Raises:
        BadInputError: A number is out of range.
    """
    _require(name, 1, prefixes=num_prefixes, rounds=num_rounds, concurrency=concurrency)
    _require(name, 1, own_tokens=own_tokens, output_tokens=output_tokens)
    _require(name, 0, shared_tokens=shared_tokens, seed=seed)

    def requests() -> Iterator[TraceRequest]:
        rng = np.random.default_rng(seed)
        for _ in range(num_rounds):
            for number in range(num_prefixes):
                shared = _tokens(np.random.default_rng((seed, number)), shared_tokens)
                yield TraceRequest(shared + _tokens(rng, own_tokens), output_tokens)

    return Workload(
        name=name,
        description=f"{num_prefixes} prefixes of {shared_tokens:,} tokens in turn, {num_rounds} "
        f"times, each time {own_tokens:,} tokens behind it, {output_tokens:,} out",
        concurrency=concurrency,
        num_requests=num_prefixes * num_rounds,
        requests=requests,
    )


def _require(name: str, minimum: int, **numbers: int) -> None:
    for what, value in numbers.items():
        if value < minimum:
            what = what.replace("_", " ")
            raise BadInputError(f"{name}: {what} must be at least {minimum}, not {value}")


def _tokens(rng: np.random.Generator, num_tokens: int) -> list[int]:
    return rng.integers(0, _VOCABULARY, num_tokens).tolist()


@dataclass(frozen=True)
class _SharedPrefixShape:
    num_requests: int
    input_tokens: int
    shared_tokens: int
    output_tokens: int
    concurrency: int


_SHAPES = {
    "W1": _SharedPrefixShape(320, 8192, 7372, 1024, 32),
    "W2": _SharedPrefixShape(10, 14_000, 14_000, 1, 1),
    "W3": _SharedPrefixShape(2, 64_530, 32_274, 1, 1),
}


def _replayed(name: str, seed: int, percent: Callable[[int], int]) -> Workload:
    """14 prompts of 128,000 tokens, one after another; then a part of each again."""
    num_prompts, input_tokens = 14, 128_000
    _require(name, 0, seed=seed)

    def prompt(number: int) -> list[int]:
        return _tokens(np.random.default_rng((seed, number)), input_tokens)

    def requests() -> Iterator[TraceRequest]:
        for number in range(num_prompts):
            yield TraceRequest(prompt(number), 1)
        for number in range(num_prompts):
            yield TraceRequest(prompt(number)[: input_tokens * percent(number) // 100], 1)

    shares = sorted({percent(number) for number in range(num_prompts)})
    share = " to ".join(str(share) for share in dict.fromkeys((shares[0], shares[-1])))
    return Workload(
        name=name,
        description=f"{num_prompts} prompts of {input_tokens:,} tokens, then "
        f"{share} % of each again",
        concurrency=1,
        num_requests=2 * num_prompts,
        requests=requests,
    )


MODELS = ("chat", "agentic", "mix")
_MODEL_REQUESTS = 1_000
_MODEL_CONCURRENCY = 32


def modelled(
    model: str,
    *,
    name: str | None = None,
    num_requests: int = _MODEL_REQUESTS,
    seed: int = 0,
) -> Workload:
    """Return the first requests of a model of real traffic.

    Args:
        model: One of ``MODELS``.
        name: What to call it; the model's name by default.
        num_requests: So many; more of them begin with the same ones, except for ``mix``.
        seed: The same seed gives the same requests.

    Raises:
        BadInputError: A number is out of range.
    """
    name = name or model
    _require(name, 1, requests=num_requests)
    _require(name, 0, seed=seed)

    def drafts() -> Iterator[Draft]:
        if model == "mix":
            return mix(seed, num_requests)
        return chat(seed) if model == "chat" else agentic(seed)

    def requests() -> Iterator[TraceRequest]:
        return (draft.request() for draft in islice(drafts(), num_requests))

    return Workload(
        name=name,
        description=f"{num_requests} requests: {DESCRIPTIONS[model]}",
        concurrency=_MODEL_CONCURRENCY,
        num_requests=num_requests,
        requests=requests,
    )


# What each named workload is, in a few words.
DESCRIPTIONS = {
    "W1": "a long system prompt that all share",
    "W2": "one prompt of 14,000 tokens again and again",
    "W3": "two long prompts, the first half the same",
    "W5": "long prompts, then 10 to 100 % of each again",
    "W5f": "long prompts, then each again",
    "chat": "a chat service: conversations of a few turns over long documents",
    "agentic": "coding assistants: sessions that grow by what their tools return",
    "mix": "chat and coding assistants, half of each, in one hour",
}
WORKLOAD_NAMES = tuple(DESCRIPTIONS)
# A name that pages and reports use for requests that are not ours to give away.
W4 = (
    "the first 1,000 requests of Mooncake's conversation trace, which is not part of this package: "
    "get FAST25-release/traces/conversation_trace.jsonl of https://github.com/kvcache-ai/Mooncake "
    "and give --workload PATH --max-requests 1000 --max-output-tokens 64; "
    "'chat' is a model of such traffic"
)


def named_workload(name: str, *, seed: int = 0) -> Workload:
    """Return a named workload; the same seed gives the same prompts.

    Raises:
        KeyError: There is none of that name.
    """
    if name in MODELS:
        return modelled(name, seed=seed)
    if name == "W5":
        return _replayed(name, seed, lambda number: (number % 10 + 1) * 10)
    if name == "W5f":
        return _replayed(name, seed, lambda number: 100)
    return shared_prefix(name, **vars(_SHAPES[name]), seed=seed)
