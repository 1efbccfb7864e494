# SPDX-License-Identifier: Apache-2.0
"""Random traffic on one engine: families of prompts, aborts, preemptions, resets. Seeded."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.output import SchedulerOutput

from tests.e2e.core.engine import Engine


@dataclass(frozen=True)
class Traffic:
    """What requests look like and how often something happens to them, per engine step.

    Attributes:
        unit_tokens: prompts are cut and diverge at and around multiples of this.
        max_prompt_tokens: longest prompt.
        max_output_tokens: longest answer.
        num_families: prompt trees kept at a time; fewer means more sharing.
        max_alive: requests known to the scheduler at a time.
    """

    unit_tokens: int
    max_prompt_tokens: int
    max_output_tokens: int = 12
    num_families: int = 3
    max_alive: int = 8
    arrival: float = 0.5
    abort: float = 0.02
    abort_in_flight: float = 0.02
    idle_reset: float = 0.004
    busy_reset: float = 0.002
    salted: float = 0.08
    with_lora: float = 0.04
    vocabulary: int = 50


class Workload:
    """Feeds an engine with traffic.

    Attributes:
        num_requests: Requests sent so far.
    """

    def __init__(self, engine: Engine, traffic: Traffic, seed: int) -> None:
        self.engine = engine
        self.traffic = traffic
        self.random = random.Random(seed)
        self._families: list[list[int]] = []
        self.num_requests = 0
        self._prefix = f"s{seed}-"

    def run(self, num_steps: int, check_every: int = 8) -> None:
        """Execute at least `num_steps` steps, then let everything end and check the leftovers."""
        engine = self.engine
        target = engine.worker.num_steps + num_steps
        turn = 0
        while engine.worker.num_steps < target:
            turn += 1
            self.turn()
            if turn % check_every == 0:
                engine.check()
        engine.drain()

    def turn(self) -> None:
        """One turn of the engine, with what happens before and after it."""
        engine, rng, traffic = self.engine, self.random, self.traffic
        alive = engine.alive
        if len(alive) < traffic.max_alive and (not alive or rng.random() < traffic.arrival):
            self._add()
        engine.step(self._maybe_abort_in_flight)
        if rng.random() < traffic.abort:
            self._abort(engine.alive)
        if rng.random() < traffic.idle_reset:
            engine.reset()
        if rng.random() < traffic.busy_reset:
            engine.reset(busy=True)

    def _add(self) -> None:
        rng, traffic = self.random, self.traffic
        prompt = self._prompt()
        self.num_requests += 1
        request_id = f"{self._prefix}{self.num_requests}"
        kwargs: dict = {"arrival_time": float(self.num_requests), "priority": rng.randrange(3)}
        if rng.random() < traffic.salted:
            kwargs["cache_salt"] = rng.choice("ab")
        if rng.random() < traffic.with_lora:
            number = rng.randrange(1, 3)
            kwargs["lora"] = LoRARequest(f"adapter-{number}", number, "/nowhere")
        self.engine.add(
            request_id, prompt, rng.randrange(1, traffic.max_output_tokens + 1), **kwargs
        )

    def _prompt(self) -> list[int]:
        """A new tree, a replay, a branch at any offset, or the next turn of a conversation."""
        rng, traffic = self.random, self.traffic
        if not self._families or rng.random() < 0.07:
            family = self._random_tokens(rng.randrange(1, traffic.max_prompt_tokens + 1))
            self._remember(family)
            return family
        kind = rng.random()
        if kind < 0.25 and self.engine.requests:
            request_id = rng.choice(list(self.engine.requests))
            request = self.engine.requests[request_id]
            # The next turn holds what the client has seen, not what the worker has computed.
            prompt = list(request.prompt_token_ids or ()) + self.engine.outputs[request_id]
            prompt += self._random_tokens(rng.randrange(1, 2 * traffic.unit_tokens))
        else:
            family = rng.choice(self._families)
            if kind < 0.5:
                return list(family)
            cut = self._cut(len(family))
            prompt = family[:cut] + self._random_tokens(rng.randrange(1, 2 * traffic.unit_tokens))
        prompt = prompt[: traffic.max_prompt_tokens]
        if rng.random() < 0.3:
            self._remember(prompt)
        return prompt

    def _cut(self, num_tokens: int) -> int:
        rng, unit = self.random, self.traffic.unit_tokens
        if rng.random() < 0.5:
            return rng.randrange(num_tokens + 1)
        boundary = rng.randrange(num_tokens // unit + 1) * unit
        return max(0, min(num_tokens, boundary + rng.randrange(-2, 3)))

    def _remember(self, prompt: list[int]) -> None:
        self._families.append(prompt)
        if len(self._families) > self.traffic.num_families:
            self._families.pop(self.random.randrange(len(self._families) - 1))
        # Old requests are of no use for next turns.
        for request_id in list(self.engine.requests)[:-20]:
            if request_id not in self.engine.scheduler.requests:
                del self.engine.requests[request_id]

    def _random_tokens(self, count: int) -> list[int]:
        return [self.random.randrange(self.traffic.vocabulary) for _ in range(count)]

    def _abort(self, candidates: list[str]) -> None:
        """Any stage: waiting, prefilling, decoding or preempted."""
        if candidates:
            self.engine.abort([self.random.choice(candidates)])

    def _maybe_abort_in_flight(self, output: SchedulerOutput) -> None:
        if self.random.random() < self.traffic.abort_in_flight:
            self._abort([r for r in output.num_scheduled_tokens if r in self.engine.alive])
