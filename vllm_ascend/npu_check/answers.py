# SPDX-License-Identifier: Apache-2.0
"""Answers to the same prompt behind a hit and without one: alike, but for rounding?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Attributes:
        token_ids: Of the answer.
        scores: For every token of the answer, the log probabilities of the likeliest ids.
        cached_tokens: Of the prompt, found in the cache.
    """

    token_ids: Sequence[int]
    scores: Sequence[Mapping[int, float]]
    cached_tokens: int


@dataclass(frozen=True)
class Difference:
    """Where two answers part.

    Attributes:
        place: Tokens that are alike before it.
        gap: How much likelier the first answer's token was there than the other's, by the first
            answer's own scores, in nats. Rounding turns only what is about equally likely.
    """

    place: int
    gap: float


def first_difference(one: Answer, other: Answer) -> Difference | None:
    """Return where two answers part, ``None`` if all their tokens are alike."""
    for place, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=True)):
        if a != b:
            scores = one.scores[place]
            # An id that is not among the likeliest is less likely than any of them.
            return Difference(place, scores[a] - scores.get(b, min(scores.values())))
    return None


def largest_score_difference(one: Answer, other: Answer) -> float:
    """Return by how many nats a token's score differs at most, as long as the tokens are alike.

    Behind another token everything may differ.
    """
    parted = first_difference(one, other)
    alike = len(one.token_ids) if parted is None else parted.place
    return max(
        (
            abs(one.scores[place][token] - other.scores[place][token])
            for place, token in enumerate(one.token_ids[:alike])
        ),
        default=0.0,
    )


def num_recalled(answer: Answer, expected: Sequence[int]) -> int:
    """Return how many tokens of an answer go on as the prompt's text did, up to the first other."""
    pairs = zip(answer.token_ids, expected, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(expected))
