# SPDX-License-Identifier: Apache-2.0
"""A load that this command sends itself, where a server counts no requests but its answers tell.

It has the shape of the tool's load and prompts of its own. It is not timed: the tool's is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping

from vllm_ascend.server_access.access import HttpAccess
from vllm_ascend.server_access.server import Target
from vllm_ascend_evaluation.regress.results import (
    USAGE,
    WARM_UPS,
    CacheUse,
    PerformanceSettings,
)
from vllm_ascend_evaluation.replay.http.client import Answer, HttpClient
from vllm_ascend_evaluation.replay.http.player import Played, Player
from vllm_ascend_evaluation.replay.http.prompts import PromptShape, fit
from vllm_ascend_evaluation.replay.trace import Workload
from vllm_ascend_evaluation.replay.workloads import shared_prefix


def hits_of_answers(
    target: Target,
    settings: PerformanceSettings,
    *,
    access: HttpAccess,
    timeout_s: float,
    counters: Mapping[str, float],
    on_answer: Callable[[int], None],
) -> CacheUse:
    """Send a load and add up what its answers say of the cache.

    Args:
        target: The server.
        settings: The load.
        access: API key and TLS.
        timeout_s: Longest silence of the server in seconds.
        counters: Those to report beside the hits.
        on_answer: Told after every answer how many there are.

    Raises:
        ServerError: The server did not answer everything.
    """
    answers = asyncio.run(_send(target, settings, access, timeout_s, on_answer))
    prompts = sum(answer.prompt_tokens for answer in answers)
    told = [answer.cached_tokens for answer in answers if answer.cached_tokens is not None]
    return CacheUse(prompts, sum(told) if told else None, dict(counters), USAGE)


async def _send(
    target: Target,
    settings: PerformanceSettings,
    access: HttpAccess,
    timeout_s: float,
    on_answer: Callable[[int], None],
) -> list[Answer]:
    workload = _workload(settings)
    client = HttpClient(target.url, timeout_s=timeout_s, access=access)
    answers: list[Answer] = []
    try:
        # As the tools do it: the first prompt alone, and then all, the first one among them.
        for part in (workload.cut(WARM_UPS, None), workload):
            before = len(answers)

            def show(played: Played, before: int = before) -> None:
                on_answer(before + len(played.answers))

            answers += await _play(part, Player(client, target.model, show))
    finally:
        await client.close()
    return answers


async def _play(workload: Workload, player: Player) -> Iterable[Answer]:
    await player.play(workload)
    if player.played.failure is not None:
        raise player.played.failure
    return player.played.answers.values()


def _workload(settings: PerformanceSettings) -> Workload:
    # Prompts of their own: an earlier load's would be in the cache already.
    seed = random.randrange(1 << 31)
    load = shared_prefix(
        "load",
        num_requests=settings.requests,
        input_tokens=settings.input_tokens,
        shared_tokens=settings.shared_tokens,
        output_tokens=settings.output_tokens,
        concurrency=settings.concurrency,
        seed=seed,
    )
    return fit(load, PromptShape(seed=seed)).workload
