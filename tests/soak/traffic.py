# SPDX-License-Identifier: Apache-2.0
"""Random operations on one engine, recorded as they are applied."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.soak.case import Habits
from tests.soak.driver import Driver
from tests.soak.operations import (
    ANSWER,
    IMAGE,
    STREAM,
    Abort,
    Add,
    Continue,
    Operation,
    Prompt,
    Reset,
    Segment,
    Sleep,
    StartAnew,
    Step,
    TurnTo,
    WakeUp,
    cut,
    num_tokens,
)

_NUM_PAST_ADDS = 20
# How often a session is continued or ended, per engine step.
_CONTINUES = 0.3
# Several images are equally long, so that their placeholders are the same tokens.
_IMAGE_TOKENS = (4, 4, 4, 11, 11, 11)


class RandomTraffic:
    """Feeds a driver: families of prompts, next turns, aborts, resets, sleep.

    Attributes:
        operations: what was applied so far; the last one is the one that failed, if one did.
    """

    def __init__(self, driver: Driver, habits: Habits, seed: int) -> None:
        self.operations: list[Operation] = []
        self._driver = driver
        self._habits = habits
        self._random = random.Random(seed)
        self._families: list[Prompt] = []
        self._past: list[Add] = []
        self._count = 0

    def run(self) -> None:
        """Apply operations until the steps of the case are done."""
        rng, habits, driver = self._random, self._habits, self._driver
        while driver.num_steps < habits.num_steps:
            alive = driver.engine.alive
            if driver.is_asleep:
                if rng.random() < 0.3 or len(alive) >= habits.max_alive:
                    self._do(WakeUp())
                    continue
            elif rng.random() < habits.sleep:
                level, mode = rng.choice(habits.sleep_modes).split()
                self._do(Sleep(int(level), mode))
                continue
            if len(alive) < habits.max_alive and (not alive or rng.random() < habits.arrival):
                self._do(self._add())
            if habits.with_sessions and rng.random() < _CONTINUES:
                self._continue_a_session()
            self._do(Step(self._pick(habits.abort_in_flight)))
            if (leaver := self._pick(habits.abort)) is not None:
                self._do(Abort(leaver))
            if rng.random() < habits.idle_reset:
                self._do(Reset())
            if rng.random() < habits.busy_reset:
                self._do(Reset(busy=True))
            if driver.case.tier is not None:
                self._turn_to_the_tier()

    def _turn_to_the_tier(self) -> None:
        """What happens only where there is a tier."""
        rng, habits = self._random, self._habits
        busy = rng.random() < 0.5 and habits.busy_reset > 0
        if rng.random() < habits.tier_reset:
            self._do(Reset(busy=busy, tier=True))
        if rng.random() < habits.lost_memory:
            self._do(Reset(busy=busy, loses_memory=True))
        if rng.random() < habits.new_engine:
            self._do(StartAnew())
        if rng.random() < habits.other_engine:
            self._do(TurnTo(rng.randrange(self._driver.case.tier.num_engines)))

    def _do(self, operation: Operation) -> None:
        self.operations.append(operation)
        self._driver.apply(operation)

    def _pick(self, probability: float) -> str | None:
        """Any request that is alive, now and then."""
        if self._random.random() >= probability:
            return None
        alive = self._driver.engine.alive
        return self._random.choice(alive) if alive else None

    def _add(self) -> Add:
        rng, habits = self._random, self._habits
        self._count += 1
        add = Add(
            f"r{self._count}",
            self._prompt(),
            rng.randrange(1, habits.max_output_tokens + 1),
            priority=rng.randrange(3),
            salt=rng.choice("ab") if rng.random() < habits.salted else None,
            lora=rng.randrange(1, 3) if rng.random() < habits.with_lora else 0,
            embeds=rng.random() < habits.with_embeds,
            prompt_logprobs=rng.random() < habits.with_prompt_logprobs,
            pools=habits.pools,
        )
        if self._may_be_session(add) and rng.random() < habits.with_sessions:
            add = replace(add, resumable=True)
        self._past = [*self._past[1 - _NUM_PAST_ADDS :], add]
        return add

    def _may_be_session(self, add: Add) -> bool:
        """vLLM's sessions have token ids, and no prompt logprobs."""
        return not (add.embeds or add.prompt_logprobs or add.pools)

    def _continue_a_session(self) -> None:
        """Send any session more input, as long as it may grow, or end it."""
        rng, habits = self._random, self._habits
        sessions = self._driver.open_sessions()
        if not sessions:
            return
        session = rng.choice(sessions)
        count = rng.randrange(1, 2 * habits.unit_tokens)
        ends = session.num_tokens + count > habits.max_prompt_tokens or rng.random() < 0.3
        self._do(Continue(session.request_id, self._branch((), count), last=ends))

    def _prompt(self) -> Prompt:
        """A new tree, a replay, a branch at any offset, or the next turn of a conversation."""
        rng, habits = self._random, self._habits
        longest = habits.max_prompt_tokens
        if not self._families or rng.random() < 0.07:
            family = self._branch((), rng.randrange(1, longest + 1))
            self._remember(family)
            return family
        kind = rng.random()
        own = rng.randrange(1, 2 * habits.unit_tokens)
        if kind < 0.25 and self._past:
            past = rng.choice(self._past)
            turn = Segment(ANSWER, 0, rng.randrange(1, past.max_tokens + 1))
            prompt = self._branch((*past.prompt, turn), own)
        else:
            family = rng.choice(self._families)
            if kind < 0.5:
                return self._with_other_images(family) if rng.random() < 0.4 else family
            prompt = self._branch(cut(family, self._cut(num_tokens(family))), own)
        prompt = cut(prompt, longest) or self._branch((), own)
        if rng.random() < 0.3:
            self._remember(prompt)
        return prompt

    def _branch(self, prefix: Prompt, count: int) -> Prompt:
        """Continue a prompt with something that nobody has asked before, or with an image."""
        rng = self._random
        branch = [*prefix]
        if rng.random() < self._habits.with_images:
            before = rng.randrange(count)
            if before:
                branch.append(Segment(STREAM, rng.randrange(1 << 30), before))
            for _ in range(rng.choice((1, 1, 2, 3))):  # several may share a granule
                number = rng.randrange(len(_IMAGE_TOKENS))
                branch.append(Segment(IMAGE, number, _IMAGE_TOKENS[number]))
        branch.append(Segment(STREAM, rng.randrange(1 << 30), count))
        return cut(branch, self._habits.max_prompt_tokens) or (
            Segment(STREAM, rng.randrange(1 << 30), count),
        )

    def _with_other_images(self, prompt: Prompt) -> Prompt:
        """The same token ids; other images stand behind some of the placeholders."""

        def other(segment: Segment) -> Segment:
            if segment.kind != IMAGE or self._random.random() < 0.5:
                return segment
            alike = [n for n, tokens in enumerate(_IMAGE_TOKENS) if tokens == segment.count]
            return segment._replace(number=self._random.choice(alike))

        return tuple(map(other, prompt))

    def _cut(self, count: int) -> int:
        rng, unit = self._random, self._habits.unit_tokens
        if rng.random() < 0.5:
            return rng.randrange(count + 1)
        boundary = rng.randrange(count // unit + 1) * unit
        return max(0, min(count, boundary + rng.randrange(-2, 3)))

    def _remember(self, prompt: Prompt) -> None:
        self._families.append(prompt)
        if len(self._families) > self._habits.num_families:
            self._families.pop(self._random.randrange(len(self._families) - 1))
