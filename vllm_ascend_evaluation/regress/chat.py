# SPDX-License-Identifier: Apache-2.0
"""Puts questions to ``/v1/chat/completions``, so many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import httpx

from vllm_ascend.server_access.access import HttpAccess
from vllm_ascend.server_access.server import Target, server_errors
from vllm_ascend_evaluation.regress.gpqa import Question, find_answer
from vllm_ascend_evaluation.regress.journal import Answer
from vllm_ascend_evaluation.regress.results import AccuracySettings

NAME = "chat completions"
_CONNECT_S = 30.0


def ask(
    target: Target,
    settings: AccuracySettings,
    questions: Sequence[Question],
    *,
    access: HttpAccess,
    timeout_s: float,
    keep: Callable[[Answer], None],
) -> None:
    """Have questions answered.

    Args:
        target: The server.
        settings: How to ask.
        questions: In their order.
        access: API key and TLS.
        timeout_s: Longest time for one answer in seconds.
        keep: Called with each answer as it comes.

    Raises:
        ServerError: A question was not answered; those answered before have been kept.
    """
    asyncio.run(_ask_all(target, settings, questions, access, timeout_s, keep))


async def _ask_all(
    target: Target,
    settings: AccuracySettings,
    questions: Sequence[Question],
    access: HttpAccess,
    timeout_s: float,
    keep: Callable[[Answer], None],
) -> None:
    waiting = iter(questions)
    async with httpx.AsyncClient(
        timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S, pool=None),
        **access.client_arguments(),
    ) as client:

        async def work() -> None:
            for question in waiting:
                keep(await _ask_one(client, target, settings, question))

        workers = [asyncio.create_task(work()) for _ in range(settings.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


async def _ask_one(
    client: httpx.AsyncClient, target: Target, settings: AccuracySettings, question: Question
) -> Answer:
    url = f"{target.url}/v1/chat/completions"
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": question.prompt}],
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
    }
    with server_errors(url):
        response = (await client.post(url, json=body)).raise_for_status()
        (choice,) = response.json()["choices"]
        # Of a reasoning model, what it says behind its reasoning; that may be nothing.
        letter = find_answer(choice["message"]["content"] or "")
        is_cut = choice["finish_reason"] == "length"
    return Answer(question.number, letter, letter == question.answer, is_cut)
