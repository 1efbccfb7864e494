# SPDX-License-Identifier: Apache-2.0
"""What readers yield and the engine replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from random import Random

from vllm_ascend.command_line.bad_input import BadInputError


@dataclass(frozen=True)
class TraceRequest:
    """One request of a workload.

    Attributes:
        prompt_token_ids: The prompt.
        output_tokens: Tokens that the answer will have, at least one.
        arrival_ms: When it arrives, counted from the first request; ``None`` if the workload has
            no arrival times.
        session: Number of the session that it belongs to; ``None`` if that is not known.
        think_ms: A user thought so long before sending it, from the answer to the request before
            it in its session; ``None`` if it waits for no answer. Where there is an ``arrival_ms``
            too, that one says when it arrives.
        assumed: What its reader had to assume of it, as it follows a number of requests.
    """

    prompt_token_ids: list[int]
    output_tokens: int
    arrival_ms: float | None = None
    session: int | None = None
    think_ms: float | None = None
    assumed: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the answer together."""
        return len(self.prompt_token_ids) + self.output_tokens


@dataclass(frozen=True)
class Workload:
    """A named sequence of requests that can be read any number of times.

    Attributes:
        name: Short name.
        description: The shape, in words, but for ``concurrency``.
        concurrency: Requests in flight at once in a closed loop.
        num_requests: How many requests ``requests`` yields.
        requests: Yields the requests in order of arrival, lazily and each time alike.
        num_left_out: Requests that are not among them because they are too long.
        assumed: What was assumed, and of how many of the requests.
        when: When requests arrive that arrive at their times, in words.
    """

    name: str
    description: str
    concurrency: int
    num_requests: int
    requests: Callable[[], Iterator[TraceRequest]]
    num_left_out: int = 0
    assumed: Mapping[str, int] = field(default_factory=dict)
    when: str = "at their timestamps"

    def in_words(self, *, is_timed: bool) -> str:
        """Return the shape, how requests come in, and what was assumed.

        Args:
            is_timed: Whether requests arrive at their times, not in a closed loop.
        """
        pace = self.when if is_timed else f"{self.concurrency} at a time"
        remarks = (f"{count:,} {what}" for what, count in self.assumed.items())
        return "; ".join((self.description, pace, *remarks))

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

    def within(self, max_model_len: int, of: str = "") -> Workload:
        """Return this workload without the requests that are too long.

        The whole workload is read, so that nothing has to stop half-way.

        Args:
            max_model_len: What a prompt and its answer may have together, in tokens.
            of: Whose ``--max-model-len`` that is, for errors; ours if empty.

        Raises:
            BadInputError: No request is left.
        """
        read = [(request.num_tokens, request.assumed) for request in self.requests()]
        lengths = [length for length, _ in read]
        num_long = sum(length > max_model_len for length in lengths)
        if not num_long:
            return self
        if num_long == len(lengths):
            raise BadInputError(
                f"--workload {self.name}: every request is too long: with their answers they have "
                f"{min(lengths)} tokens or more, above {of}--max-model-len {max_model_len}"
            )

        def requests() -> Iterator[TraceRequest]:
            return (r for r in self.requests() if r.num_tokens <= max_model_len)

        return replace(
            self,
            description=f"{self.description}; {num_long} longer than {max_model_len} left out",
            num_requests=len(lengths) - num_long,
            requests=requests,
            num_left_out=self.num_left_out + num_long,
            assumed=count_assumed(what for length, what in read if length <= max_model_len),
        )

    def arriving(self, rate: float, seed: int) -> Workload:
        """Return this workload with requests that come at random times, whatever it says itself.

        A turn of a session comes at its own, too, whether the one before it has been answered.

        Args:
            rate: Requests per second, on average: gaps are exponential, as of a Poisson process.
            seed: Of the gaps; every reading has the same.
        """

        def requests() -> Iterator[TraceRequest]:
            gaps, now_ms = Random(seed), 0.0
            for request in self.requests():
                yield replace(request, arrival_ms=now_ms, think_ms=None)
                now_ms += 1000 * gaps.expovariate(rate)

        return replace(self, requests=requests, when=f"{rate:g} per s at random")

    def check_arrivals(self) -> None:
        """Check that the time of every request is known.

        Raises:
            BadInputError: It is not.
        """
        for request in self.requests():
            if request.arrival_ms is None and request.think_ms is None:
                raise BadInputError(
                    f"{self.name} has no timestamps: take other traffic, or replay it in a "
                    "closed loop"
                )


def count_assumed(assumed: Iterable[tuple[str, ...]]) -> Mapping[str, int]:
    """Return of how many requests each thing was assumed, given what was of each request."""
    return Counter(chain.from_iterable(assumed))
