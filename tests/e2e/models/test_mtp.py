# SPDX-License-Identifier: Apache-2.0
"""The MTP layer through vLLM's own speculative decoding: drafts change the number of steps only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.e2e.models import workloads
from tests.e2e.models.engines import Answer, Engine, engine
from tests.e2e.models.test_cache_on_and_off import DSV4, SETTINGS

PROMPTS = [
    *(workloads.fresh(num_tokens, seed=num_tokens) for num_tokens in (5, 127, 129, 1500)),
    *workloads.diverging(workloads.fresh(1500, seed=1500), (900, 1023, 1281)),
]
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def right(deepseek) -> list[Answer]:
    with engine(deepseek, DSV4, block_size=32, enable_prefix_caching=False) as running:
        return running.ask_one_by_one(PROMPTS, MAX_TOKENS)


@contextmanager
def drafting(
    model, setting: str, num_drafts: int, right: list[Answer] | None = None
) -> Iterator[tuple[Engine, list[int]]]:
    """Run an engine that drafts; yield it and how many tokens each drafting step was given.

    With ``right`` every other drafting step says what the model will say, and so is accepted.
    """
    switches, block_size = SETTINGS[setting]
    with engine(
        model,
        switches,
        block_size=block_size,
        speculative_config={"method": "mtp", "num_speculative_tokens": num_drafts},
    ) as running:
        accepted: list[int] = []
        scheduler = running.scheduler
        update = scheduler.update_from_output

        def count(scheduled, output):
            accepted.extend(max(len(tokens) - 1, 0) for tokens in output.sampled_token_ids)
            return update(scheduled, output)

        scheduler.update_from_output = count
        if right is not None:
            foretell(running, right, num_drafts)
        yield running, accepted


def foretell(running: Engine, right: list[Answer], num_drafts: int) -> None:
    """Let every other draft be what the model will say."""
    drafter = running.runner.drafter
    propose = drafter.propose
    follows: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for answer in right:
        for place in range(1, len(answer.tokens)):
            follows[answer.tokens[max(place - 3, 0) : place]] = list(answer.tokens[place:])
    calls = iter(range(1 << 30))

    def tell(*arguments, **options):
        drafts = propose(*arguments, **options)
        if next(calls) % 2:
            return drafts
        batch = running.runner.input_batch
        for index, name in enumerate(batch.req_ids):
            said = tuple(running.runner.requests[name].output_token_ids)
            sampled = options["next_token_ids"][index].item()
            said = said if said and said[-1] == sampled else (*said, sampled)
            coming = follows.get(said[-3:], [])[:num_drafts]
            drafts[index, : len(coming)] = torch.tensor(coming, dtype=drafts.dtype)
        return drafts

    drafter.propose = tell


@pytest.mark.parametrize(
    ("setting", "num_drafts"),
    [("best, 128", 1), ("best, 32", 3), ("dense, 32", 2), ("partial, interval 0, 128", 3)],
)
def test_drafts_change_nothing(deepseek, right, setting, num_drafts):
    """All of them rejected, then some accepted; cold, then behind hits."""
    for told in (None, right):
        with drafting(deepseek, setting, num_drafts, told) as (running, accepted):
            answers = running.ask_one_by_one(PROMPTS * 2, MAX_TOKENS)
        for answer, other in zip(answers, right * 2, strict=True):
            assert answer.equals(other)
        assert (sum(accepted) > 20) == (told is not None)
        if "dense" not in setting:
            # One granule less than without drafts, or none.
            for prompt, answer in list(zip(PROMPTS * 2, answers, strict=True))[len(PROMPTS) :]:
                whole = (len(prompt) - 1) // 128 * 128
                assert answer.num_cached_tokens in (whole, max(whole - 128, 0))


def test_drafts_of_many_at_once(deepseek, right):
    with drafting(deepseek, "best, 128", 2, right) as (running, accepted):
        answers = running.ask(PROMPTS, MAX_TOKENS) + running.ask(PROMPTS, MAX_TOKENS)
    for answer, other in zip(answers, right * 2, strict=True):
        assert answer.equals(other)
    assert sum(accepted) > 20
