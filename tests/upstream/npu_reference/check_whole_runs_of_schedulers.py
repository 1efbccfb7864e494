# SPDX-License-Identifier: Apache-2.0
"""Run over a real checkout on the CPU (see real_runs): many users, vllm-ascend's own schedulers.

Their ``schedule`` is not vLLM's: each has a copy of it.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.upstream.npu_reference.check_whole_runs import BEST, answers_twice
from tests.upstream.npu_reference.engine import NUM_ANSWERED, Engine, answered, tokens_of
from tests.upstream.npu_reference.releases import differences_here
from tests.upstream.npu_reference.routing import choices

# Scores of experts that are about 1 differ by less between two orders of adding up.
_ROUNDING = 1e-5
_RECOMPUTE = "vllm_ascend.core.recompute_scheduler"
# What makes vLLM take a scheduler, by the name of its class; its own, first.
SCHEDULERS: dict[str, dict[str, Any]] = {
    "Scheduler": {},
    "BalanceScheduler": {"additional_config": {"enable_balance_scheduling": True}},
    "RecomputeScheduler": {"scheduler_cls": f"{_RECOMPUTE}.RecomputeScheduler"},
    "AsyncRecomputeScheduler": {
        "scheduler_cls": f"{_RECOMPUTE}.AsyncRecomputeScheduler",
        "async_scheduling": True,
    },
}


@pytest.mark.parametrize("num_drafts", [0, 2])
@pytest.mark.parametrize("name", [name for name, settings in SCHEDULERS.items() if settings])
def test_a_scheduler_of_their_own(name, num_drafts):
    engine = Engine(rows=32, switches=BEST, num_drafts=num_drafts, **SCHEDULERS[name])
    assert type(engine.core.scheduler).__name__ == name
    answers_twice(engine, hits=True)


@pytest.mark.parametrize("rows", [32, 128])
@pytest.mark.parametrize("name", differences_here().gives_drafts_no_blocks)
def test_drafts_of_a_first_step_reach_behind_its_blocks(name, rows):
    """The row of the table may be one that moved, and drafts must find none of its blocks there."""
    engine = Engine(rows=rows, num_drafts=3, **SCHEDULERS[name])
    for _ in range(2):
        answers_twice(engine, hits=False)


def test_requests_that_a_decode_instance_gives_back():
    """Where blocks run out it ends a request instead of preempting it; the client asks again."""
    settings = {"num_gpu_blocks_override": 260, "max_model_len": 1024}
    settings |= SCHEDULERS["RecomputeScheduler"]
    engine = Engine(rows=32, switches=BEST, **settings)
    prompts, expected = zip(*answered(), strict=True)
    long = [prompt for prompt in prompts if len(prompt) > 500]
    asked = [[index, *prompt] for index in range(3, 7) for prompt in long]
    # Alone each finds room; later releases give requests back on any instance.
    whole = [tokens for prompt in asked for tokens in tokens_of(engine.answer([prompt], 200))]
    assert engine.core.scheduler.reset_prefix_cache()
    config = engine.core.scheduler.vllm_config
    config.kv_transfer_config = SimpleNamespace(is_kv_producer=False, is_kv_consumer=True)
    outputs = engine.answer(asked, 200)
    given_back = [output.outputs[0].stop_reason == "recomputed" for output in outputs]
    assert any(given_back) and not all(given_back)
    said = tokens_of(outputs)
    for prompt, tokens, again in zip(asked, said, given_back, strict=True):
        if again:
            tokens += tokens_of(engine.answer([[*prompt, *tokens]], 200 - len(tokens)))[0]
    assert said == whole
    assert tokens_of(engine.answer(prompts)) == list(expected)


@pytest.mark.parametrize("num_drafts", [0, 2])
def test_sixteen_users_at_a_time(num_drafts):
    """Each with a question of its own behind one of the prompts, three times over."""
    engine = Engine(
        rows=32,
        switches=BEST,
        num_drafts=num_drafts,
        max_num_seqs=16,
        num_gpu_blocks_override=3000,
    )
    prompts = [prompt for prompt, _ in answered()]
    asked, alone = [], []
    for user in range(16):
        question, answer = _decided(engine, prompts[user % len(prompts)], user)
        asked.append(question)
        alone.append(answer)
    assert engine.core.scheduler.reset_prefix_cache()
    most = []
    schedule = engine.core.scheduler.schedule

    def counted(*args, **kwargs):
        output = schedule(*args, **kwargs)
        most.append(len(output.num_scheduled_tokens))
        return output

    engine.core.scheduler.schedule = counted
    for _ in range(3):
        outputs = engine.answer(asked, NUM_ANSWERED)
        assert tokens_of(outputs) == alone
    assert max(most) == 16
    assert all(output.num_cached_tokens for output in outputs if len(output.prompt_token_ids) > 300)


def _decided(engine: Engine, prompt: list[int], user: int) -> tuple[list[int], list[int]]:
    """Return a user's prompt and its answer, in which rounding chooses no expert.

    Requests that are computed together add up in another order than one alone.
    """
    for token in range(user + 3, 1000, 16):
        question = [*prompt, token, *range(40, 40 + 9 * user)]
        assert engine.core.scheduler.reset_prefix_cache()
        choices.margin = math.inf
        answer = tokens_of(engine.answer([question]))[0]
        if choices.margin > _ROUNDING:
            return question, answer
    raise AssertionError(f"rounding chooses experts in each prompt of user {user}")
