# SPDX-License-Identifier: Apache-2.0
"""Token-id traces of the traffic types in docs/tuning.md, for ``replay`` and ``sweep``::

python -m benchmarks.traffic rag rag.jsonl

The same name always gives the same file: tokens come from a seeded generator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

_VOCABULARY = 100_000
_MILLION = 1_024_000


class Exchange(NamedTuple):
    """One request of a trace."""

    prompt: list[int]
    output_tokens: int


class Tokens:
    """Random token ids, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def __call__(self, count: int) -> list[int]:
        """Return ``count`` fresh tokens."""
        return self._rng.integers(0, _VOCABULARY, count).tolist()

    def one_of(self, count: int) -> int:
        """Return a number below ``count``."""
        return int(self._rng.integers(count))


def agents(tokens: Tokens) -> Iterator[Exchange]:
    """16 agents take 12 turns each; all begin with the same 6,000 tokens of tools and rules.

    A turn repeats everything before it, answers included, and adds 900 tokens (a tool's output).
    """
    tools = tokens(6_000)
    turns = [[tokens(900 + 300) for _ in range(12)] for _ in range(16)]
    histories = [list(accumulate(agent, initial=tools)) for agent in turns]
    for turn in range(12):
        for history in histories:
            # The last 300 tokens of a turn are its answer, which the next prompt repeats.
            yield Exchange(history[turn + 1][:-300], 300)


def resent(tokens: Tokens) -> Iterator[Exchange]:
    """A prefix of 12,000 tokens, sent 12 times, each time with another tail of up to 28,000."""
    prefix = tokens(12_000)
    for tail_tokens in (0, 7_000, 14_000, 28_000) * 3:
        yield Exchange(prefix + tokens(tail_tokens), 16)


def rag(tokens: Tokens) -> Iterator[Exchange]:
    """400 questions of 300 tokens, each behind one of 24 documents of 6,000 to 20,000 tokens."""
    rules = tokens(700)
    documents = [tokens(6_000 + tokens.one_of(14_000)) for _ in range(24)]
    for _ in range(400):
        document = documents[tokens.one_of(24)]
        yield Exchange(list(chain(rules, document, tokens(300))), 200)


def tiny(tokens: Tokens) -> Iterator[Exchange]:
    """1,000 prompts of 420 to 900 tokens, the first 400 the same."""
    instructions = tokens(400)
    for _ in range(1_000):
        yield Exchange(instructions + tokens(20 + tokens.one_of(480)), 32)


def million(tokens: Tokens) -> Iterator[Exchange]:
    """4 prompts of 1,024,000 tokens that share the first 99 %."""
    shared = tokens(_MILLION * 99 // 100)
    for _ in range(4):
        yield Exchange(shared + tokens(_MILLION - len(shared)), 16)


TRAFFIC: dict[str, Callable[[Tokens], Iterator[Exchange]]] = {
    "agents": agents,
    "resent": resent,
    "rag": rag,
    "tiny": tiny,
    "million": million,
}


def main(
    name: Annotated[str, typer.Argument(help=f"{', '.join(TRAFFIC)}.")],
    path: Annotated[Path, typer.Argument(help="The JSONL file to write.")],
    seed: Annotated[int, typer.Option(help="Of the tokens.")] = 0,
) -> None:
    """Write a trace of one traffic type."""
    if name not in TRAFFIC:
        raise typer.BadParameter(
            f"{name!r} is unknown: allowed are {', '.join(TRAFFIC)}", param_hint="NAME"
        )
    with path.open("w", encoding="utf-8") as file:
        for exchange in TRAFFIC[name](Tokens(seed)):
            line = {
                "prompt_token_ids": exchange.prompt,
                "output_length": exchange.output_tokens,
            }
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    typer.run(main)
