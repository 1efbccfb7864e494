# SPDX-License-Identifier: Apache-2.0
"""What traffic looks like: lengths, sessions, and what a cache could hit of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vllm_ascend_evaluation.replay.curves.policies import PrefixTrace, belady, lru
from vllm_ascend_evaluation.replay.trace import Workload

_EVERYTHING = 1 << 60


@dataclass(frozen=True)
class Spread:
    """Some numbers in short."""

    mean: float
    median: float
    p90: float
    largest: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread | None:
        """Return the spread of some numbers, ``None`` if there are none."""
        if not len(numbers):
            return None
        values = np.asarray(numbers, dtype=float)
        median, p90 = np.percentile(values, [50, 90])
        return cls(float(values.mean()), float(median), float(p90), float(values.max()))


@dataclass(frozen=True)
class TrafficStatistics:
    """A workload in numbers.

    Attributes:
        name: Of the workload.
        num_requests: Its requests.
        duration_s: From the first arrival to the last, ``None`` without arrival times.
        prompt_tokens: Per prompt.
        output_tokens: Per answer.
        session_requests: Requests per session, ``None`` if sessions are not known.
        continued: Share of the requests that go on with an earlier one, 0 to 1. One does so if it
            begins with at least two blocks, and with all blocks of the earlier one but its last.
        gap_s: Time from the earlier request to such a one, ``None`` without arrival times.
        unlimited: What a cache hits that never forgets, in percent of prompt tokens.
        lru: Capacity in blocks -> what LRU hits, in percent of prompt tokens.
        belady: The same of the optimal policy.
    """

    name: str
    num_requests: int
    duration_s: float | None
    prompt_tokens: Spread
    output_tokens: Spread
    session_requests: Spread | None
    continued: float
    gap_s: Spread | None
    unlimited: float
    lru: Mapping[int, float]
    belady: Mapping[int, float]


def measure(workload: Workload, block_tokens: int, capacities: Sequence[int]) -> TrafficStatistics:
    """Read a workload once and describe it.

    Args:
        workload: At least one request.
        block_tokens: Prompts are cut into prefix blocks of so many tokens.
        capacities: In blocks, for LRU and Belady.
    """
    outputs: list[int] = []
    arrivals_ms: list[float] = []
    sessions: Counter[int] = Counter()

    def prompts() -> Iterator[list[int]]:
        for request in workload.requests():
            outputs.append(request.output_tokens)
            if request.arrival_ms is not None:
                arrivals_ms.append(request.arrival_ms)
            if request.session is not None:
                sessions[request.session] += 1
            yield request.prompt_token_ids

    trace = PrefixTrace.of(prompts(), block_tokens)
    earlier = continued_requests(trace)
    gaps_s = [
        (arrivals_ms[number] - arrivals_ms[before]) / 1000
        for number, before in earlier.items()
        if arrivals_ms
    ]
    lengths, answers = Spread.of(trace.prompt_tokens), Spread.of(outputs)
    assert lengths is not None and answers is not None, "a workload has requests"
    return TrafficStatistics(
        name=workload.name,
        num_requests=len(outputs),
        duration_s=(arrivals_ms[-1] - arrivals_ms[0]) / 1000 if arrivals_ms else None,
        prompt_tokens=lengths,
        output_tokens=answers,
        session_requests=Spread.of(list(sessions.values())),
        continued=len(earlier) / len(outputs),
        gap_s=Spread.of(gaps_s),
        unlimited=trace.rate(lru(trace, _EVERYTHING)),
        lru={capacity: trace.rate(lru(trace, capacity)) for capacity in capacities},
        belady={capacity: trace.rate(belady(trace, capacity)) for capacity in capacities},
    )


def continued_requests(trace: PrefixTrace) -> dict[int, int]:
    """Return which requests go on with an earlier one: number -> number of the earlier one.

    Traces without sessions show next turns only so. What a request shares with the one that used
    its last known block last is compared with that one's length.
    """
    last_user: dict[int, int] = {}
    earlier: dict[int, int] = {}
    for number, blocks in enumerate(trace.prompts):
        shared = 0
        while shared < len(blocks) and blocks[shared] in last_user:
            shared += 1
        if shared > 1:
            before = last_user[blocks[shared - 1]]
            # The earlier one's last block may be partial, which goes on as another block.
            if shared >= len(trace.prompts[before]) - 1:
                earlier[number] = before
        last_user.update(dict.fromkeys(blocks, number))
    return earlier
