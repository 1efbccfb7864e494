# SPDX-License-Identifier: Apache-2.0
"""Sends shots to a server until the time is over."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from vllm_ascend.command_line.bad_input import BadInputError
from vllm_ascend.server_access.vocabulary import FIRST_ID
from vllm_ascend_evaluation.calibrate.shots import (
    SHORTEST,
    Shot,
    decode_observation,
    decode_shot,
    next_turn,
    powers_of_two,
    prefill_lengths,
    prefill_observation,
    round_of_shots,
    start_observation,
)
from vllm_ascend_evaluation.replay.cost.fit import Observation
from vllm_ascend_evaluation.replay.http.client import Answer, HttpClient

# A prompt that takes more than this share of the time is too long to be measured often.
_SHARE_OF_A_SHOT = 1 / 12
# An answer in fewer pieces has several tokens in one: the server drafts.
_LEAST_PIECES = 0.8


class Point(NamedTuple):
    """A shot and what was seen of it."""

    shot: Shot
    observation: Observation


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Attributes:
        model: Name of the model.
        seconds: For so long.
        longest: Longest prompt in tokens.
        most_requests: At a time on each rank.
        chunk: ``--max-num-batched-tokens`` of the server.
        vocab_size: Ids of prompts stay below it.
        num_ranks: Data-parallel ranks of the server.
    """

    model: str
    seconds: float
    longest: int
    most_requests: int
    chunk: int
    vocab_size: int
    num_ranks: int = 1


@dataclass
class Measured:
    """What was measured so far.

    Attributes:
        points: In the order of measuring.
        num_requests: Sent; a server counts one that is given up as answered.
        known_tokens: Of them, which the server may find in its cache.
        num_rounds: Of all shots, the one that is under way among them.
        longest: Prompt in tokens for which there was time.
        interrupted: Whether the user ended it.
    """

    points: list[Point] = field(default_factory=list)
    num_requests: int = 0
    known_tokens: int = 0
    num_rounds: int = 0
    longest: int = 0
    interrupted: bool = False


class Measuring:
    """Sends shots.

    Attributes:
        measured: What came of it so far.
    """

    def __init__(
        self, client: HttpClient, plan: Plan, on_shot: Callable[[Measured, Shot, float], None]
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            client: Speaks to the server.
            plan: How to measure.
            on_shot: Told what is there, what is sent next, and the seconds that are over.
        """
        self.measured = Measured()
        self._client, self._plan, self._on_shot = client, plan, on_shot
        # Of this run alone: what an earlier one sent may be in the cache.
        self._draw = random.SystemRandom()
        self._tokens = np.random.default_rng()
        self._started = 0.0
        self._prompt: list[int] = []  # sent last
        self._tells_hits = False  # whether the server finds what it knows, and says so

    async def run(self) -> None:
        """Measure until the time is over; being cancelled ends it early.

        Raises:
            ServerError: The server does not answer, or not rightly.
            BadInputError: It caches what is to be computed, or drafts.
        """
        self._started = time.perf_counter()
        try:
            lengths = await self._warm_up()
            self.measured.longest = lengths[-1]
            while not self._is_over:
                self.measured.num_rounds += 1
                plan = self._plan
                for shot in round_of_shots(lengths, plan.most_requests, plan.chunk, self._draw):
                    if self._is_over:
                        break
                    await self._measure(shot)
                    if shot.is_prefill and self._tells_hits:
                        await self._measure(next_turn(shot, self._draw))
        except asyncio.CancelledError:
            self.measured.interrupted = True

    async def _measure(self, shot: Shot) -> None:
        seen = await self._send(shot)
        self.measured.points += [Point(shot, each) for each in seen if each is not None]

    async def _warm_up(self) -> list[int]:
        """Send every kind once, uncounted, and return the lengths for which there is time."""
        plan = self._plan
        reached: list[int] = []
        for number in powers_of_two(plan.most_requests):
            await self._send(decode_shot(min(SHORTEST, plan.longest), number, plan.chunk))
        for length in prefill_lengths(plan.longest):
            started = time.perf_counter()
            await self._send(Shot(length))
            await self._send(Shot(length, known_tokens=length - 1))
            took_too_long = time.perf_counter() - started > plan.seconds * _SHARE_OF_A_SHOT
            if took_too_long and reached:
                break
            reached.append(length)
        return reached

    @property
    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    @property
    def _is_over(self) -> bool:
        return self._seconds >= self._plan.seconds

    async def _send(self, shot: Shot) -> list[Observation | None]:
        self._on_shot(self.measured, shot, self._seconds)
        plan = self._plan
        num_requests = 1 if shot.is_prefill else shot.num_requests * plan.num_ranks
        prompts = prompts_of(shot, num_requests, self._prompt, plan.vocab_size, self._tokens)
        self._prompt = prompts[0]
        times: list[list[float]] = [[] for _ in prompts]
        self.measured.num_requests += num_requests
        self.measured.known_tokens += shot.known_tokens
        sent_s = time.perf_counter()
        answers = await asyncio.gather(
            *(
                self._client.complete(plan.model, prompt, shot.output_tokens, of.append)
                for prompt, of in zip(prompts, times, strict=True)
            )
        )
        for answer, of in zip(answers, times, strict=True):
            _check(shot, answer, num_pieces=len(of))
        if shot.is_prefill:
            cached_tokens, ttft_s = answers[0].cached_tokens or 0, answers[0].ttft_s
            self._tells_hits |= cached_tokens > 0
            if shot.known_tokens and not cached_tokens:
                return []  # vLLM says nothing where it finds nothing, or is not to tell
            return [prefill_observation(shot.prompt_tokens, ttft_s, plan.chunk, cached_tokens)]
        seen = [decode_observation(shot.prompt_tokens, times, plan.num_ranks)]
        if shot.num_requests > 1:
            of_server = plan.chunk, plan.num_ranks
            seen.append(start_observation(shot.prompt_tokens, sent_s, times, *of_server))
        return seen


def prompts_of(
    shot: Shot,
    num_requests: int,
    before: Sequence[int],
    vocab_size: int,
    tokens: np.random.Generator,
) -> list[list[int]]:
    """Return random prompts of a shot.

    Args:
        shot: Says how long they are, and for how long the first one begins as the one before.
        num_requests: So many on all ranks together.
        before: The prompt that was sent before. What a server knows of it ends where the shot says
            so: the next token is another one.
        vocab_size: Ids stay below it.
        tokens: Draws them.
    """
    size = (num_requests, shot.prompt_tokens)
    prompts: list[list[int]] = tokens.integers(FIRST_ID, vocab_size, size).tolist()
    known = shot.known_tokens
    if known:
        num_others = vocab_size - FIRST_ID - 1
        step = 1 + int(tokens.integers(num_others))
        other = FIRST_ID + (before[known] - FIRST_ID + step) % (num_others + 1)
        prompts[0][: known + 1] = [*before[:known], other]
    return prompts


def _check(shot: Shot, answer: Answer, *, num_pieces: int) -> None:
    if (answer.cached_tokens or 0) > shot.known_tokens:
        new = shot.prompt_tokens - shot.known_tokens
        raise BadInputError(
            f"the server found {answer.cached_tokens} of {shot.prompt_tokens} tokens of a prompt "
            f"in its cache, though {new} are random and new: it caches what should be computed"
        )
    if answer.output_tokens < shot.output_tokens:
        raise BadInputError(
            f"the server answered {answer.output_tokens} of {shot.output_tokens} tokens: it does "
            "not know min_tokens and ignore_eos, without which there is nothing to measure"
        )
    if num_pieces < _LEAST_PIECES * answer.output_tokens:
        raise BadInputError(
            f"the server sent {answer.output_tokens} tokens in {num_pieces} pieces, so that steps "
            "cannot be told apart: calibrate without drafts and stream intervals"
        )
