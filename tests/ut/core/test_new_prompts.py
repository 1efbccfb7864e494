# SPDX-License-Identifier: Apache-2.0
"""Tokens of new prompts are old to the garbage collector when a step starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.e2e.core import layouts
from vllm_ascend.core import new_prompts
from vllm_ascend.core.new_prompts import NewPrompts
from vllm_ascend.dry_run.scheduler import SchedulerOptions, build_scheduler, make_request

LONG = 300_000


@pytest.fixture(autouse=True)
def old_heap() -> Iterator[None]:
    """What there is already is old, and nothing but the tested code wakes the collector."""
    gc.collect()
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000)
    yield
    gc.set_threshold(*thresholds)


def is_young(tokens: list[int]) -> bool:
    return any(tokens is other for age in (0, 1) for other in gc.get_objects(age))


def test_a_long_prompt_is_walked_at_once():
    tokens = list(range(LONG))
    assert is_young(tokens)
    NewPrompts().added(len(tokens))
    assert not is_young(tokens)


def test_short_prompts_are_walked_together():
    prompts, new = [list(range(100_000)) for _ in range(3)], NewPrompts()
    for prompt, are_young in zip(prompts, (True, True, False), strict=True):
        new.added(len(prompt))
        assert is_young(prompts[0]) == are_young
    later = list(range(100_000))
    new.added(len(later))
    assert is_young(later)


def test_whoever_switched_the_collector_off_is_obeyed():
    tokens = list(range(LONG))
    gc.disable()
    try:
        NewPrompts().added(len(tokens))
    finally:
        gc.enable()
    assert is_young(tokens)


def test_the_scheduler_tells_of_every_request(monkeypatch):
    monkeypatch.setenv("VLLM_ASCEND_PREFIX_CACHE_PROFILE", "best")
    monkeypatch.setattr(new_prompts, "_MOST_NEW_TOKENS", 90)
    options = SchedulerOptions(num_blocks=100, max_model_len=96)
    scheduler = build_scheduler(layouts.gemma_like(4, 9), options)
    first, second = (make_request(scheduler, name, list(range(50)), 1) for name in "ab")
    scheduler.add_request(first)
    assert is_young(first.prompt_token_ids)
    scheduler.add_request(second)
    assert not is_young(second.prompt_token_ids)
