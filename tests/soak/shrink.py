# SPDX-License-Identifier: Apache-2.0
"""From an episode that failed to the few operations and switches that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from tests.soak.case import Case, Recording, Tier
from tests.soak.episode import Failure, replay
from tests.soak.operations import Add, Operation, Prompt, num_tokens
from tests.soak.recipes import Layer
from vllm_ascend.dry_run.scheduler import SchedulerOptions

_ROOMY_BLOCKS = 2000
_ROOMY_TOKENS = 4096


class Shrinker:
    """Delta debugging: leaves out whatever the failure does not need.

    A smaller case counts only if it fails in the same way: two bugs may be near each other.
    """

    def __init__(self, recording: Recording, failure: Failure, seconds: float) -> None:
        """Prepare.

        Args:
            seconds: of computing; what has been reached by then is the result.
        """
        self._name = recording.name
        self._case = recording.case
        self._operations = list(recording.operations)
        self._failure = failure
        self._deadline = time.process_time() + seconds
        self._num_blocks = recording.case.options.num_blocks or 0

    @property
    def _is_stall(self) -> bool:
        return self._failure.signature.startswith("AssertionError")

    def shrink(self) -> Recording:
        """Return the smallest case that was found; the given one if it does not fail again."""
        failure = replay(self._case, self._operations)
        if failure is None:
            text = f"It does not fail in a replay. In the episode:\n{self._failure.text}"
            return Recording(self._name, self._case, tuple(self._operations), text)
        # A replay checks more often, so this may be nearer to the cause.
        self._failure = failure
        while not self._is_late():
            before = self._case, list(self._operations)
            self._leave_out_operations()
            self._simplify_requests()
            self._simplify_case()
            if before == (self._case, self._operations):
                break
        return Recording(self._name, self._case, tuple(self._operations), self._failure.text)

    def _is_late(self) -> bool:
        return time.process_time() >= self._deadline

    def _fails(self, case: Case, operations: Sequence[Operation]) -> bool:
        """Whether a case fails in the same way; if so its message is kept."""
        if self._is_stall and (case.options.num_blocks or 0) < self._num_blocks:
            return False  # in a pool that is too small everything stalls
        try:
            failure = replay(case, operations)
        except Exception:  # it cannot be built
            return False
        if failure is None or failure.signature != self._failure.signature:
            return False
        self._failure = failure
        return True

    def _leave_out_operations(self) -> None:
        """In chunks, from half of them down to single ones."""
        size = max(len(self._operations) // 2, 1)
        while not self._is_late():
            end = len(self._operations)
            while end > 0 and not self._is_late():
                start = max(end - size, 0)
                fewer = self._operations[:start] + self._operations[end:]
                if self._fails(self._case, fewer):
                    self._operations = fewer
                end = start
            if size == 1:
                break
            size = max(size // 2, 1)

    def _simplify_requests(self) -> None:
        for index, operation in enumerate(self._operations):
            if isinstance(operation, Add):
                self._simplify(simpler_adds, operation, self._put(index))

    def _put(self, index: int) -> Callable[[Add], bool]:
        def put(add: Add) -> bool:
            operations = [*self._operations[:index], add, *self._operations[index + 1 :]]
            if not self._fails(self._case, operations):
                return False
            self._operations = operations
            return True

        return put

    def _simplify_case(self) -> None:
        def use(case: Case) -> bool:
            if not self._fails(case, self._operations):
                return False
            self._case = case
            return True

        self._simplify(simpler_cases, self._case, use)

    def _simplify(self, simpler: Callable, thing, use: Callable) -> None:
        """Take the first simpler thing that still fails, and start over from it."""
        found = True
        while found and not self._is_late():
            found = False
            for candidate in simpler(thing):
                if self._is_late():
                    return
                if use(candidate):
                    thing, found = candidate, True
                    break


def simpler_adds(add: Add) -> Iterator[Add]:
    """Requests that ask for less, simplest first."""
    plain = {"priority": 0, "salt": None, "lora": 0, "embeds": False, "prompt_logprobs": False}
    for name, value in plain.items():
        if getattr(add, name) != value:
            yield replace(add, **{name: value})
    for prompt in shorter_prompts(add.prompt):
        yield replace(add, prompt=prompt)
    for count in _less(add.max_tokens):
        yield replace(add, max_tokens=count)


def shorter_prompts(prompt: Prompt) -> Iterator[Prompt]:
    """Prompts without a piece, or with less of it; never empty ones."""
    for index, segment in enumerate(prompt):
        rest = (*prompt[:index], *prompt[index + 1 :])
        if num_tokens(rest):
            yield rest
        for count in _less(segment.count):
            yield (*prompt[:index], segment._replace(count=count), *prompt[index + 1 :])


def simpler_cases(case: Case) -> Iterator[Case]:
    """Cases with something switched off, or with another pool."""
    for name in case.environment:
        rest = {key: value for key, value in case.environment.items() if key != name}
        yield replace(case, environment=rest)
    if case.connection is not None:
        yield replace(case, connection=None)
        if case.connection.failures:
            yield replace(case, connection=replace(case.connection, failures=0.0))
    if case.tier is not None:
        for tier in simpler_tiers(case.tier):
            yield replace(case, tier=tier)
    for options in simpler_options(case.options):
        yield replace(case, options=options)
    if case.layout.mtp:
        options = replace(case.options, num_speculative_tokens=0)
        yield replace(case, layout=replace(case.layout, mtp=False), options=options)
    for layers in fewer_layers(case.layout.layers):
        yield replace(case, layout=replace(case.layout, layers=layers))


def simpler_tiers(tier: Tier) -> Iterator[Tier | None]:
    """No tier, or one of fewer parts that fails less."""
    yield None
    plain = Tier(tier.seed, tier.backend)
    for field in fields(Tier):
        if getattr(tier, field.name) != (value := getattr(plain, field.name)):
            yield replace(tier, **{field.name: value})


def simpler_options(options: SchedulerOptions) -> Iterator[SchedulerOptions]:
    """Plainer ways of scheduling, and pools that do not matter or matter soon."""
    simple: dict[str, Any] = {
        "async_scheduling": False,
        "num_speculative_tokens": 0,
        "draft_method": "mtp",
        "policy": "fcfs",
        "enable_kv_cache_events": False,
        "num_blocks": max(options.num_blocks or 0, _ROOMY_BLOCKS),
    }
    if options.num_blocks == simple["num_blocks"]:
        # In a tight pool longer steps would only starve.
        simple["max_num_batched_tokens"] = max(options.max_num_batched_tokens, _ROOMY_TOKENS)
    for name, value in simple.items():
        if getattr(options, name) != value:
            yield replace(options, **{name: value})
    if options.num_blocks is not None and options.num_blocks < _ROOMY_BLOCKS:
        # It takes pressure, which a smaller pool has with fewer requests.
        for number in _less(options.num_blocks):
            yield replace(options, num_blocks=number)


def fewer_layers(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, ...]]:
    """Layers without one of them; DeepSeek-V4 keeps its window and one compressor."""
    for index, layer in enumerate(layers):
        before, behind = layers[:index], layers[index + 1 :]
        if layer.kind != "window" and len(layers) > 1 + (layer.kind == "compressed"):
            yield (*before, *behind)
        if layer.count > 1:
            yield (*before, replace(layer, count=1), *behind)


def _less(count: int) -> Iterator[int]:
    """Smaller positive numbers, the smallest first."""
    tried = {1, count // 4, count // 2, count * 3 // 4, count - 1}
    yield from sorted(number for number in tried if 0 < number < count)
