# SPDX-License-Identifier: Apache-2.0
"""What readers yield and the engine replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


class BadInputError(ValueError):
    """A file or an option cannot be used; the message names it, the line and what is wrong."""


@dataclass(frozen=True)
class TraceRequest:
    """One request of a workload.

    Attributes:
        prompt_token_ids: The prompt.
        output_tokens: Tokens that the answer will have, at least one.
        arrival_ms: When it arrives, counted from the first request; ``None`` if the workload has
            no arrival times.
    """

    prompt_token_ids: list[int]
    output_tokens: int
    arrival_ms: float | None = None


@dataclass(frozen=True)
class Workload:
    """A named sequence of requests that can be read any number of times.

    Attributes:
        name: Short name.
        description: The shape, in words.
        concurrency: Requests in flight at once in a closed loop.
        num_requests: How many requests ``requests`` yields.
        requests: Yields the requests in order of arrival, lazily and each time alike.
    """

    name: str
    description: str
    concurrency: int
    num_requests: int
    requests: Callable[[], Iterator[TraceRequest]]
