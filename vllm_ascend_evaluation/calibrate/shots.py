# SPDX-License-Identifier: Apache-2.0
"""What is sent to a server to see its times, and what those times tell of its steps."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from vllm_ascend_evaluation.replay.cost.fit import Observation
from vllm_ascend_evaluation.replay.cost.model import StepWork, pairs_among

SHORTEST = 64
_NUM_LENGTHS = 10
# Prompts of one length are drawn so much shorter, that no two rounds measure the same.
_SPREAD = 0.25
# Steps in which all requests answer; those in which some still compute their prompts come on top.
_DECODE_STEPS = 24
_LEAST_STEPS = 4


@dataclass(frozen=True)
class Shot:
    """Requests that are sent together.

    Attributes:
        prompt_tokens: Of each prompt.
        num_requests: So many on each rank; a prompt is measured on one of them.
        output_tokens: Of each answer. One: the time to it is measured, else the time per token.
        known_tokens: The prompt begins as one that was sent right before, for so long.
    """

    prompt_tokens: int
    num_requests: int = 1
    output_tokens: int = 1
    known_tokens: int = 0

    @property
    def is_prefill(self) -> bool:
        """Whether the prompt is measured, not the answer."""
        return self.output_tokens == 1

    def __str__(self) -> str:
        if self.is_prefill:
            known = f", {self.known_tokens:,} of them known" if self.known_tokens else ""
            return f"a prompt of {self.prompt_tokens:,} tokens{known}"
        answers = "an answer" if self.num_requests == 1 else f"{self.num_requests} answers"
        return f"{answers} behind {self.prompt_tokens:,} tokens"


def prefill_lengths(longest: int) -> list[int]:
    """Return the lengths of prompts that are measured alone, the shortest first."""
    if longest <= SHORTEST:
        return [longest]
    growth = (longest / SHORTEST) ** (1 / (_NUM_LENGTHS - 1))
    return sorted({round(SHORTEST * growth**number) for number in range(_NUM_LENGTHS)})


def round_of_shots(
    lengths: Sequence[int], most_requests: int, chunk: int, draw: random.Random
) -> list[Shot]:
    """Return one round of all shots, in random order.

    Requests that answer together have no more context than the longest prompt: that fits into the
    server's memory. Where even the shortest prompts have more, they are cut: steps of many answers
    are those that decide what a server can do.

    Args:
        lengths: Of prompts, the shortest first.
        most_requests: At a time.
        chunk: ``--max-num-batched-tokens`` of the server.
        draw: Draws lengths and the order.
    """
    shots = [Shot(_shorter(length, draw)) for length in lengths]
    for num_requests in powers_of_two(min(most_requests, lengths[-1])):
        share = lengths[-1] // num_requests
        fitting = [length for length in lengths if length <= share] or [share]
        # The shortest, one in the middle and the longest.
        chosen = sorted({*fitting[:1], *fitting[len(fitting) // 2 :][:1], *fitting[-1:]})
        shots += [decode_shot(_shorter(length, draw), num_requests, chunk) for length in chosen]
    draw.shuffle(shots)
    return shots


def next_turn(shot: Shot, draw: random.Random) -> Shot:
    """Return a prompt of the same length that leaves another one somewhere, rather late."""
    new_tokens = round(shot.prompt_tokens ** draw.random())
    return Shot(shot.prompt_tokens, known_tokens=shot.prompt_tokens - new_tokens)


def powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4 ... up to ``most``, and that itself."""
    return sorted({*(1 << power for power in range(most.bit_length())), most})


def decode_shot(prompt_tokens: int, num_requests: int, chunk: int) -> Shot:
    """Return requests whose answers are long enough to overlap."""
    prefill_steps = math.ceil(num_requests * prompt_tokens / chunk)
    return Shot(prompt_tokens, num_requests, _DECODE_STEPS + 2 * prefill_steps)


def _shorter(length: int, draw: random.Random) -> int:
    return max(1, round(length * (1 - _SPREAD * draw.random())))


def prefill_observation(
    prompt_tokens: int, ttft_s: float, chunk: int, cached_tokens: int = 0
) -> Observation:
    """Return what the time to first token tells of an idle server.

    Args:
        prompt_tokens: Of the prompt.
        ttft_s: Time to first token in seconds.
        chunk: ``--max-num-batched-tokens`` of the server.
        cached_tokens: What of the prompt was found in the cache.
    """
    work = StepWork(num_steps=0)
    for start in range(cached_tokens, prompt_tokens, chunk):
        num_new = min(chunk, prompt_tokens - start)
        work += StepWork(1, 1, num_new, pairs_among(num_new), start * num_new)
    return Observation(work, 1000 * ttft_s, num_arrivals=1)


def decode_observation(
    prompt_tokens: int, times: Sequence[Sequence[float]], num_ranks: int = 1
) -> Observation | None:
    """Return what the times of tokens tell that several requests got side by side.

    Only steps count in which all of them answer. Their time is the median: a pause of the client
    or of the host is no work of the model. Ranks step together and have as many requests each.

    Args:
        prompt_tokens: Of each prompt.
        times: Of each request, when its tokens came, in seconds, a step each.
        num_ranks: Data-parallel ranks, over which the requests are spread evenly.

    Returns:
        ``None`` if too few steps had all of them.
    """
    last_to_begin = max(times, key=lambda of: of[0])
    first_end = min(of[-1] for of in times)
    steps = [time for time in last_to_begin if time <= first_end]
    num_steps = len(steps) - 1
    if num_steps < _LEAST_STEPS:
        return None
    # Each has so many tokens behind its prompt, of which the last is the new one.
    num_rows = sum(prompt_tokens + bisect_right(of, at) - 1 for at in steps[1:] for of in times)
    num_decodes = len(times) // num_ranks * num_steps
    work = StepWork(num_steps, num_decodes, num_decodes, decode_rows=num_rows // num_ranks)
    step_s = median(after - before for before, after in pairwise(steps))
    return Observation(work, 1000 * step_s * num_steps)


def start_observation(
    prompt_tokens: int,
    sent_s: float,
    times: Sequence[Sequence[float]],
    chunk: int,
    num_ranks: int = 1,
) -> Observation | None:
    """Return what the time tells until all of several requests have begun to answer.

    Whoever came first was computed alone, the others in the steps behind that: several prompts
    beside answers that have begun.

    Args:
        prompt_tokens: Of each prompt.
        sent_s: When all were sent, in seconds.
        times: Of each request, when its tokens came, in seconds, a step each.
        chunk: ``--max-num-batched-tokens`` of the server.
        num_ranks: Data-parallel ranks, over which the requests are spread evenly.

    Returns:
        ``None`` if nobody knows where prompts were cut into steps.
    """
    num_prompts = len(times) // num_ranks
    if num_prompts * (prompt_tokens + 1) > chunk:
        return None
    # It has a token of each step from then on.
    ends = min(times, key=lambda of: of[0])
    steps = [min(range(len(ends)), key=lambda step: abs(ends[step] - of[0])) for of in times]
    num_steps = max(steps) + 1
    answered = [num_steps - 1 - step for step in steps]
    num_decodes = sum(answered) // num_ranks
    num_rows = sum(n * prompt_tokens + n * (n + 1) // 2 for n in answered) // num_ranks
    work = StepWork(
        num_steps,
        num_prompts + num_decodes,
        num_prompts * prompt_tokens + num_decodes,
        num_prompts * pairs_among(prompt_tokens),
        0,
        num_rows,
    )
    took_s = max(of[0] for of in times) - sent_s
    return Observation(work, 1000 * took_s, num_arrivals=1)
