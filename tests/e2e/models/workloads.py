# SPDX-License-Identifier: Apache-2.0
"""What users do to a prefix cache, as lists of prompts in token ids."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.e2e.models.engines import Answer, Engine, sampling
from vllm_ascend_evaluation.models.tiny.maker import VOCAB_SIZE

Prompt = list[int]


def fresh(num_tokens: int, seed: int) -> Prompt:
    """Return tokens that no other seed begins with."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(num_tokens)]


def diverging(prefix: Sequence[int], cuts: Sequence[int], num_fresh: int = 40) -> list[Prompt]:
    """Return prompts that leave a prefix at the given places and go on with tokens of their own."""
    return [[*prefix[:cut], *fresh(num_fresh, seed=cut)] for cut in cuts]


def chat(running: Engine, num_turns: int, *, first: int, question: int) -> list[Answer]:
    """Hold a conversation: every prompt is all that was said before, and a new question.

    Args:
        running: Who answers.
        num_turns: Questions.
        first: Tokens of the system prompt.
        question: Tokens of a question.
    """
    history = fresh(first, seed=1)
    answers = []
    for turn in range(num_turns):
        history += fresh(question, seed=100 + turn)
        (answer,) = running.ask([history], max_tokens=20)
        history += answer.tokens
        answers.append(answer)
    return answers


def users(num_users: int, num_turns: int) -> list[list[Prompt]]:
    """Return rounds of prompts: users with a common system prompt who ask at the same time."""
    system = fresh(700, seed=2)
    rounds: list[list[Prompt]] = []
    histories = [list(system) for _ in range(num_users)]
    for turn in range(num_turns):
        for user, history in enumerate(histories):
            history += fresh(60 + 17 * user, seed=1000 * turn + user)
        rounds.append([list(history) for history in histories])
    return rounds


def ask_and_abort(running: Engine, prompts: Sequence[Prompt], after_steps: int) -> None:
    """Start requests, run some steps, and abort every other one; the rest end undisturbed."""
    llm_engine = running.llm.llm_engine
    ids = [
        llm_engine.add_request(
            f"aborted-{index}-{after_steps}", {"prompt_token_ids": prompt}, sampling(6)
        )
        for index, prompt in enumerate(prompts)
    ]
    for _ in range(after_steps):
        llm_engine.step()
    llm_engine.abort_request(ids[::2])
    while llm_engine.has_unfinished_requests():
        llm_engine.step()
