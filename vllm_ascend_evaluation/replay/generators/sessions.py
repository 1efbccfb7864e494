# SPDX-License-Identifier: Apache-2.0
"""Sessions as requests in order of arrival, with prompts that cost nothing until they are read."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from vllm_ascend_evaluation.replay.trace import TraceRequest

# Every text begins at a multiple of it, so that whoever maps ids into a vocabulary block by block,
# as for a Mooncake trace, maps no two texts with one block.
_ALIGNMENT = 512


class Ids:
    """Hands out token ids: a text gets a run of ids that no other text has.

    As with a Mooncake trace the ids say which prompts are equal up to where, and nothing else; they
    are no words of any vocabulary.
    """

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def text(self, num_tokens: int) -> range:
        """Return the ids of a new text."""
        text = range(self._next, self._next + num_tokens)
        self._next += -(-num_tokens // _ALIGNMENT) * _ALIGNMENT
        return text


class Draft(NamedTuple):
    """A request whose prompt is not written out yet.

    Attributes:
        arrival_ms: When it arrives.
        texts: The prompt, text by text.
        output_tokens: Tokens of its answer.
        session: Number of its session.
    """

    arrival_ms: float
    texts: tuple[range, ...]
    output_tokens: int
    session: int

    def request(self) -> TraceRequest:
        """Write the prompt out."""
        return TraceRequest(
            prompt_token_ids=list(chain.from_iterable(self.texts)),
            output_tokens=self.output_tokens,
            arrival_ms=round(self.arrival_ms),
            session=self.session,
        )


def num_tokens(texts: Iterable[range]) -> int:
    """Return how long a prompt is."""
    return sum(map(len, texts))


def interleave(sessions: Iterator[tuple[float, Iterator[Draft]]]) -> Iterator[Draft]:
    """Yield the requests of all sessions in order of arrival.

    Args:
        sessions: When a session starts, in order and without end, and its requests in order; none
            comes before the start.
    """
    # The number keeps two of one instant from comparing their iterators.
    waiting: list[tuple[float, int, Draft, Iterator[Draft]]] = []
    for number, (start_ms, session) in enumerate(sessions):
        while waiting and waiting[0][0] < start_ms:
            _, order, draft, rest = heapq.heappop(waiting)
            yield draft
            _push(waiting, order, rest)
        _push(waiting, number, session)


def _push(
    waiting: list[tuple[float, int, Draft, Iterator[Draft]]], order: int, rest: Iterator[Draft]
) -> None:
    draft = next(rest, None)
    if draft is not None:
        heapq.heappush(waiting, (draft.arrival_ms, order, draft, rest))
