# SPDX-License-Identifier: Apache-2.0
"""What readers yield and the engine replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice


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
        session: Number of the session that it belongs to; ``None`` if that is not known.
    """

    prompt_token_ids: list[int]
    output_tokens: int
    arrival_ms: float | None = None
    session: int | None = None


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

    def cut(self, max_requests: int | None, max_output_tokens: int | None) -> Workload:
        """Return this workload with only so many requests from its start, and shorter answers.

        Args:
            max_requests: All if ``None``.
            max_output_tokens: As they are if ``None``.
        """
        num_requests = min(self.num_requests, max_requests or self.num_requests)
        is_capped = max_output_tokens is not None and any(
            request.output_tokens > max_output_tokens
            for request in islice(self.requests(), num_requests)
        )
        if num_requests == self.num_requests and not is_capped:
            return self

        def requests() -> Iterator[TraceRequest]:
            for request in islice(self.requests(), num_requests):
                outputs = min(request.output_tokens, max_output_tokens or request.output_tokens)
                yield replace(request, output_tokens=outputs)

        first = f"; the first {num_requests}" if num_requests < self.num_requests else ""
        capped = f"; answers capped at {max_output_tokens} tokens" if is_capped else ""
        return replace(
            self,
            description=f"{self.description}{first}{capped}",
            num_requests=num_requests,
            requests=requests,
        )

    def check(self, *, needs_arrivals: bool, max_model_len: int) -> None:
        """Read the whole workload once, so that nothing has to stop half-way.

        Args:
            needs_arrivals: Whether every request must have an arrival time.
            max_model_len: What a prompt and its answer may have together, in tokens.

        Raises:
            BadInputError: Names the first request that cannot be replayed, and why.
        """
        for number, request in enumerate(self.requests()):
            if needs_arrivals and request.arrival_ms is None:
                raise BadInputError(f"{self.name} has no timestamps: use --arrivals closed")
            num_tokens = len(request.prompt_token_ids) + request.output_tokens
            if num_tokens > max_model_len:
                raise BadInputError(
                    f"{self.name}: request {number} has {num_tokens} tokens with its answer; "
                    f"--max-model-len is {max_model_len}"
                )
