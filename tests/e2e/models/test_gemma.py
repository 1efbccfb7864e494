# SPDX-License-Identifier: Apache-2.0
"""Gemma-3 (5 sliding-window layers for a full one) on vLLM's own CPU model, with retention."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma3ForCausalLM

from tests.e2e.models import workloads
from tests.e2e.models.engines import Answer, Engine, engine

BLOCK_SIZE = 32
SETTINGS = {
    "dense": {},
    "interval 0": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "0"},
    "interval 512": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": "512"},
    "best": {"VLLM_ASCEND_PREFIX_CACHE_PROFILE": "best"},
}


def everything(running: Engine) -> list[Answer]:
    prefix = workloads.fresh(1200, seed=0)
    prompts = [prefix, *workloads.diverging(prefix, (1, 127, 600, 639, 640, 641, 1199))]
    answers = running.ask_one_by_one(prompts * 2)
    answers += workloads.chat(running, 8, first=700, question=90)
    for together in workloads.users(16, num_turns=2):
        answers += running.ask(together, max_tokens=6)
    return answers


@pytest.fixture(scope="module")
def right(gemma) -> list[Answer]:
    with engine(gemma, block_size=BLOCK_SIZE, enable_prefix_caching=False) as running:
        return everything(running)


@pytest.mark.parametrize("setting", SETTINGS)
def test_answers_are_those_without_a_cache(gemma, right, setting):
    with engine(gemma, SETTINGS[setting], block_size=BLOCK_SIZE) as running:
        answers = everything(running)
    for answer, other in zip(answers, right, strict=True):
        assert answer.equals(other)
    assert sum(answer.num_cached_tokens > 0 for answer in answers) >= len(answers) // 2


def test_answers_are_hugging_faces(gemma):
    model = Gemma3ForCausalLM.from_pretrained(gemma).eval()
    prompts = [workloads.fresh(num_tokens, seed=num_tokens) for num_tokens in (1, 127, 128, 700)]
    with engine(gemma, SETTINGS["best"], block_size=BLOCK_SIZE) as running:
        answers = running.ask_one_by_one(prompts * 2, max_tokens=3)
    for prompt, answer in zip(prompts * 2, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *answer.tokens]])).logits[
                0, len(prompt) - 1 : -1
            ]
        distribution = logits.log_softmax(dim=-1)
        assert tuple(distribution.argmax(dim=-1).tolist()) == answer.tokens
        right = distribution.max(dim=-1).values.tolist()
        assert answer.logprobs == pytest.approx(right, abs=1e-4)
